"""Weights and activations of 8 bits: int8 on CPUs, float8 on GPUs; frozen in training."""
