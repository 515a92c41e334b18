"""Sources: what the user names becomes a stream of items."""
