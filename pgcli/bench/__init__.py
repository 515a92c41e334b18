"""Benchmarks pgcli and transformers alternately, and compares both with the machine's limit."""
