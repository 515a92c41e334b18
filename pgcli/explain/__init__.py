"""Explains one answer: what its tokens attended to, and the shape of every tensor on the way."""
