"""Own what the coordinator knows: its ranks, the round in flight, and the phases that a round may pass. Must not decide
what comes next."""
