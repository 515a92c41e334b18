"""Finds, checks, reads and writes model files."""
