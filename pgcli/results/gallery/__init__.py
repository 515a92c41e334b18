"""A gallery of results: one HTML page that works without a server and makes no requests."""
