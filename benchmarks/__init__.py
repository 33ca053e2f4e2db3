"""Speed and memory, by pytest-benchmark (`make bench`). Never part of `make test`: these machines are shared and noisy."""
