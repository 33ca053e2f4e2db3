"""What ranks record of their replicas."""
