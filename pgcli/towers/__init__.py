"""Runs two towers and classifiers: images and texts to vectors."""
