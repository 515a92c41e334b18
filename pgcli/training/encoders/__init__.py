"""Trains two towers and classifiers: losses, tasks and new models."""
