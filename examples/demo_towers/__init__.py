"""Trains the built-in two towers on drawings of coloured shapes and their captions."""
