"""Reads what is true of images and prompts from manifests, result files and documents."""
