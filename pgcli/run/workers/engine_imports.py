"""The imports of engine processes, made once in the fork server.

They create a quarter of a million permanent objects, so the garbage collector is off meanwhile.
"""

import gc

from pgcli.run.workers.engine_process import ignore_signals

ignore_signals()  # before the imports that take seconds; the forked processes ignore them as well

from pgcli.images.child_process import die_with_parent  # noqa: E402

die_with_parent()
gc.disable()

from pgcli.engine import loader  # noqa: E402, F401
from pgcli.run.workers import engine  # noqa: E402, F401

gc.freeze()  # the collector skips these objects in forked processes, which keeps memory shared
gc.enable()
