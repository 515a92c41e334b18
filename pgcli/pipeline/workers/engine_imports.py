"""What engine processes import, for the process that they are forked from.

Its imports make a quarter of a million objects that stay: none of them is garbage.
"""

import gc

from pgcli.pipeline.workers.engine_process import ignore_signals

ignore_signals()  # before the imports that take seconds; the forked processes ignore them as well

from pgcli.images.limits import die_with_parent  # noqa: E402

die_with_parent()
gc.disable()

from pgcli.engine import loader  # noqa: E402, F401
from pgcli.pipeline.workers import engine  # noqa: E402, F401

gc.freeze()  # forked processes do not look at these objects, so that they share their memory
gc.enable()
