"""One run on several engines."""
