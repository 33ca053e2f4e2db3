"""Commands as processes, which are killed, interrupted and left: timed, so they have the machine to themselves."""
