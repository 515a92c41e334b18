"""Packed and int8 weights for inference on CPUs."""
