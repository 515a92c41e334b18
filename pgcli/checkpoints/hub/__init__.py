"""Checkpoints on the Hugging Face Hub: required files, download, checks and error messages."""
