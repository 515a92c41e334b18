"""Trains the built-in model on drawings of coloured shapes: `python -m examples.demo_model`."""
