"""Runs two towers and classifiers: images and texts become vectors."""
