"""Sources: what the user names becomes a stream of items."""

from pgcli.sources.input_hints import ending_counts
from pgcli.sources.open_sources import open_sources
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.source import Source

__all__ = ["ReadOptions", "Source", "ending_counts", "open_sources"]
