"""The Python interface: load a model; caption, ask, detect, segment, embed, classify, train."""

from pgcli.api.call_options import CallOptions
from pgcli.api.engine import Engine, load
from pgcli.api.sources import Source

__all__ = ["CallOptions", "Engine", "Source", "load"]
