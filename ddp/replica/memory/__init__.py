"""A replica's state in flat memory: laid out, and averaged in few passes; what checkpoints hold besides."""
