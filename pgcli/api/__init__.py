"""The Python interface: load a model; caption, ask, detect, segment, embed, classify, train.

`arguments` reads the keywords and sources of a call, `engine` answers it or trains the model, and
`runs` saves answers as the command line does.
"""

from pgcli.api.arguments import Source
from pgcli.api.engine import Engine, load

__all__ = ["Engine", "Source", "load"]
