"""Example programs; `examples.demo_model` trains the built-in model."""
