"""Own what a user says: settings and their checks, modes, Hydra, and the plan that they make. Train nothing."""
