"""How engine processes are started: each as a new program, or forked from one that has imported
what they need."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

from pgcli.cluster.engine_process import EngineSlot

#: Python's variable that keeps the current folder off the module path.
SAFE_PATH = "PYTHONSAFEPATH"
SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def safe_path() -> Iterator[None]:
    """A block in which programs that are started import no modules of the current folder, which
    may hold images of others."""
    earlier = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]
        if earlier is not None:
            os.environ[SAFE_PATH] = earlier
