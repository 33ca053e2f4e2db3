"""What ranks exchange, over every transport."""
