"""Engines for engine processes that need no model: they answer by the name of the image."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.cluster.engine_slot import EngineSlot
from pgcli.cluster.messages import EngineCounts, EngineInfo, LoadedEngine
from pgcli.errors import InvalidCheckpoint
from pgcli.images import ImageSpec
from pgcli.pipeline import Ask
from pgcli.records import Answer, DecodedImage, Item, unanswered

BATCH = 2  # images; a chunk has 4 batches


def load(folder: Path, slot: EngineSlot) -> LoadedEngine:
    """An engine; of an image called `kills` the process dies, of `kills once` only the first."""
    if (folder / "invalid").exists():
        raise InvalidCheckpoint("the weights are damaged")
    if (folder / "dies").exists():
        os._exit(3)
    (folder / f"loaded {os.getpid()}").touch()
    info = EngineInfo("light@1", "cpu", "float32", BATCH, ImageSpec(8), {"size": 1}, (("a", "b"),))
    return LoadedEngine(info, partial(make_ask, folder), counts, partial(note_limits, folder))


def note_limits(folder: Path, state: Mapping[str, Any]) -> None:
    (folder / f"limits {os.getpid()}").write_text(json.dumps(state))


def counts() -> EngineCounts:
    return EngineCounts(prompts=1, limits="1 rows at once instead of 2")


def make_ask(folder: Path, should_stop: Callable[[], bool]) -> Ask:
    def ask(stream: Iterable[tuple[int, DecodedImage]]) -> Iterator[tuple[int, Answer]]:
        images = list(stream)
        for first, image in reversed(images):  # not in the order of the rows
            if should_stop():
                return
            if "slow" in image.item.id:
                time.sleep(0.05)
            if "kills" in image.item.id and first_time(folder, image.item.id):
                os.kill(os.getpid(), signal.SIGKILL)
            for row_index, prompt in enumerate(image.item.prompts, start=first):
                row = unanswered(image, prompt, task="ask", model="light@1")
                yield row_index, replace(row, answer=f"{image.item.id} of {len(images)}")

    return ask


def first_time(folder: Path, name: str) -> bool:
    """Whether the process is to die: always, or once for a name with `once`."""
    marker = folder / f"met {name}"
    is_first = not marker.exists()
    marker.touch()
    return is_first or "once" not in name


def stream(names: Iterable[str], prompts: int = 1) -> Iterator[tuple[int, DecodedImage]]:
    """Images of these names, each with so many prompts."""
    asked = tuple(f"prompt {number}" for number in range(prompts))
    for index, name in enumerate(names):
        item = Item(index, name, name, prompts=asked, kept={"note": index})
        yield index * prompts, DecodedImage(item, 8, 8, None, 0.0)
