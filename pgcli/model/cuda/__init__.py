"""Fused kernels of the decoder for inference on NVIDIA GPUs."""
