"""The status of each shard of a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pgcli.sinks.saved_rows import SavedRows
from pgcli.state.progress import RunProgress
from pgcli.state.shard import Shard

PART = re.compile(r"-(\d{1,9})-of-(\d{1,9})")
MAX_SHARDS = 10_000  # that are listed


@dataclass(frozen=True)
class ShardStatus:
    """A shard, as it was given to `--shard`.

    `state` is running, complete, stopped, or waiting for a shard that has not begun. Rows that
    another number of shards saved count as well. `exit_code` is None where it has not ended.
    """

    shard: str
    state: str
    rows: int
    total: int | None
    exit_code: int | None


def shards_of(
    progress: dict[str, RunProgress],
    chunks: Mapping[int, SavedRows],
    running: Collection[str],
    lost: Collection[str],
    chunk_rows: int,
) -> list[ShardStatus]:
    """The shards of the last run; none of a run of the whole output.

    `running` and `lost` are the parts whose processes run, or were killed.
    """
    found = PART.fullmatch(next(reversed(progress), ""))
    if found is None or not 0 < int(found[2]) <= MAX_SHARDS:
        return []
    count, whole = int(found[2]), next(reversed(progress.values())).whole
    owned: dict[int, list[SavedRows]] = {number: [] for number in range(count)}
    for number, chunk in chunks.items():
        owned[number % count].append(chunk)
    shards = [Shard(number, count) for number in range(count)]
    rows = [None if whole is None else shard.rows(whole, chunk_rows) for shard in shards]
    begun = {part: RunProgress() for part in lost} | progress
    return [
        shard_status(
            shard, begun.get(shard.part), owned[shard.number], total, shard.part in running
        )
        for shard, total in zip(shards, rows, strict=True)
    ]


def shard_name(part: str) -> str | None:
    """The shard, as it was given to `--shard`, that writes a part of an output."""
    found = PART.fullmatch(part)
    return f"{found[1]}/{found[2]}" if found else None


def shard_status(
    shard: Shard,
    progress: RunProgress | None,
    chunks: list[SavedRows],
    total: int | None,
    is_running: bool,
) -> ShardStatus:
    """The status of one shard, whose chunks these are and which has `total` rows."""
    rows = sum(chunk.rows for chunk in chunks)
    stored = sum(chunk.rows for chunk in chunks if chunk.is_stored)
    if total is None and progress is not None:  # of a version that did not save the whole
        total = progress.total
    total = None if total is None else max(total, rows)
    if is_running:
        state = "running"
    elif total is not None and stored >= total:
        state = "complete"
    else:
        state = "waiting" if progress is None else "stopped"
    name = f"{shard.number}/{shard.count}"
    return ShardStatus(name, state, rows, total, progress.exit_code if progress else None)
