"""Evaluation of answers against ground truth."""
