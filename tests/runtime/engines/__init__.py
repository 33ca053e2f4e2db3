"""Each backend and peer against what its entry promises."""
