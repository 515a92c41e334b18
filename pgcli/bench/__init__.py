"""Benchmarks pgcli and transformers in turns, and compares both with the machine's limit."""
