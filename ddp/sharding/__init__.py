"""Own sharding: a rank has a part of optimizer state (`zero1`), of gradients too (`zero2`), of parameters too (`zero3`)."""
