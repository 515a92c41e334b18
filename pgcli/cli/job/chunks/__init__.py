"""Runs whose chunks several processes compute: with `--join` and `--ray`."""
