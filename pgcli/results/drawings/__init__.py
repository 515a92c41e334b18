"""Copies of images with the boxes and masks of their rows."""
