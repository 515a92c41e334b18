"""Progress, counts and summary of a run, and its graceful shutdown."""
