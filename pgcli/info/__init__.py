"""Collects the output of `pgcli info`: sizes, device, dtype and memory of a model."""
