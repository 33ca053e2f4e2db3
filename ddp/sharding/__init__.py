"""Own sharding: a rank has a part of the optimizer state (`zero1`), also of the gradients (`zero2`), also of the parameters
(`zero3`)."""
