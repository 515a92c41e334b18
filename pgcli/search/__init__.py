"""Search in vectors by similarity: the most similar rows, and groups of near-duplicates."""

from pgcli.search.duplicates import THRESHOLD, duplicates
from pgcli.search.nearest import Hits, nearest

__all__ = ["THRESHOLD", "Hits", "duplicates", "nearest"]
