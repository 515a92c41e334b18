"""Compares this code with transformers on a checkpoint: `verify` runs the `cases` and `compare`s
what both programs compute; `reference` is transformers.
"""
