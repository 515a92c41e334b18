"""Explains one answer: where its tokens looked, and the shape of every tensor on the way."""
