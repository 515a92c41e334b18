"""8-bit weights and activations: int8 on CPUs, float8 on GPUs; frozen in training."""
