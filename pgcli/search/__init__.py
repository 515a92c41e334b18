"""Search in vectors by similarity: the most similar rows, and groups of near-duplicates."""

from pgcli.search.nearest import THRESHOLD, Hits, duplicates, nearest

__all__ = ["THRESHOLD", "Hits", "duplicates", "nearest"]
