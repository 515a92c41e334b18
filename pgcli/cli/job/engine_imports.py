"""What engine processes import, for the process that they are forked from.

Its imports make a quarter of a million objects that stay: none of them is garbage.
"""

import gc

gc.disable()

from pgcli.cli.job import engines  # noqa: E402, F401
from pgcli.engine import loader  # noqa: E402, F401

gc.freeze()  # forked processes do not look at these objects, so that they share their memory
gc.enable()
