"""The command line whose Ray engines need no model: `python -m tests.support.remote_engines ...`.

They answer by the name of the image, and end of some of them: the engine's process of `kills`, the
actor of `ends actor` always, and of `ends once` the first time.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.cli.job.chunks import ray_run
from pgcli.cli.job.plan import Plan
from pgcli.cli.main import main
from pgcli.cluster.engine_pool import EnginePool
from pgcli.cluster.engine_slot import EngineSlot
from pgcli.records import Item
from tests.support import light_engines

NOTES = Path("notes")  # a folder beside the images


def light_pool() -> EnginePool:
    """One engine in a process of its own."""
    NOTES.mkdir(exist_ok=True)
    return EnginePool(partial(light_engines.load, NOTES.absolute()), [EngineSlot(1)])


class LightRemoteEngine(ray_run.RemoteEngine):
    """An engine of the cluster that notes its process for each chunk and may end."""

    def _load_model(self, plan: Plan) -> EnginePool:
        pool = light_pool()
        (NOTES / f"actor {os.getpid()}").touch()
        return pool

    def run(self, number: int, ahead: int | None) -> Any:
        time.sleep(float(os.environ.get("CHUNK_SECONDS", "0")))
        for item in self._items(self._worker.chunk(number)):
            self._meet(item)
        return super().run(number, ahead)

    def answer(self, rows: range) -> Any:
        for item in self._items(rows):
            self._meet(item)
        return super().answer(rows)

    def _items(self, rows: range) -> list[Item]:
        return list(self._input.items_of([rows]))

    def _meet(self, item: Item) -> None:
        marker = NOTES / f"met {item.index}"
        is_first = not marker.exists()
        marker.touch()
        if "ends actor" in item.id or ("ends once" in item.id and is_first):
            os._exit(1)


if __name__ == "__main__":
    from tests.support import remote_engines  # by this name the actors find the class

    ray_run.RemoteEngine = remote_engines.LightRemoteEngine  # type: ignore[misc]
    sys.exit(main())
