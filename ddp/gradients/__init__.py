"""Own the way of gradients between ranks: buckets, and what they are reduced with. Knows nothing of training loops."""
