"""The Python interface: load a model, then caption, ask, detect, segment or read images."""

from pgcli.api.call_options import CallOptions
from pgcli.api.engine import Engine, load
from pgcli.api.sources import Source

__all__ = ["CallOptions", "Engine", "Source", "load"]
