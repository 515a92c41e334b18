"""This code side by side with transformers, in one run, against the machine's limit."""
