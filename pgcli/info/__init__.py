"""What `pgcli info` prints: sizes, device, dtype and memory of a model."""
