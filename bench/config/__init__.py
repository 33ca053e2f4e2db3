"""Own the user's configuration: settings and their checks, Hydra, and the plan made from them. Train nothing."""
