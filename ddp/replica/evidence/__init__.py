"""What a replica keeps of its steps so that others can check them: states around drawn steps, digests, sketches."""
