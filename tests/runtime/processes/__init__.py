"""What a rank's process has and writes down."""
