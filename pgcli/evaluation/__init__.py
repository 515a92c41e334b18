"""Answers against the truth."""
