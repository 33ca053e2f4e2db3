"""Own what the coordinator knows: its ranks and the round in flight. Must not decide what comes next."""
