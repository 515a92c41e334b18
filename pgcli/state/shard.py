"""Shards: the chunks of an output divided among processes in advance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pgcli.errors import UsageError

#: The most rows in a chunk, unless `--rows-per-file` says otherwise.
CHUNK_ROWS = 10_000
#: Chunks that engines take as they become free: as many or more, but with no fewer rows. With more
#: rows than the most, slow engines end late (benchmarks/cluster_simulation.py).
MIN_CLAIMED_CHUNKS, MIN_CLAIMED_ROWS, MAX_CLAIMED_ROWS = 1024, 64, 1000
#: The setting that holds the rows in a chunk, so that all runs of an output agree on them.
ROWS_PER_FILE = "rows_per_file"
MAX_CHUNK_ROWS = 10**9


@dataclass(frozen=True, slots=True)
class Shard:
    """The chunks whose number modulo `count` is `number`, from 0."""

    number: int
    count: int

    @property
    def part(self) -> str:
        """The suffix of the file names of this shard's state."""
        return f"-{self.number}-of-{self.count}"

    def has(self, chunk: int) -> bool:
        """Whether this shard computes the chunk."""
        return chunk % self.count == self.number

    def ranges(self, total: int, chunk_rows: int) -> Iterator[range]:
        """The rows of this shard, of `total` rows in chunks of `chunk_rows`."""
        for start in range(self.number * chunk_rows, total, self.count * chunk_rows):
            yield range(start, min(start + chunk_rows, total))

    def rows(self, total: int, chunk_rows: int) -> int:
        """The number of rows of this shard, of `total` rows in chunks of `chunk_rows`."""
        return sum(map(len, self.ranges(total, chunk_rows)))


def fair_chunk_rows(total: int | None, shards: int) -> int:
    """The rows in a chunk that divide `total` rows into equal parts, CHUNK_ROWS at most.

    The number of chunks is a multiple of the number of shards, which take them in turns.
    """
    if shards == 1 or not total:
        return CHUNK_ROWS
    rounds = -(-total // (CHUNK_ROWS * shards))
    return -(-total // (rounds * shards))


def claimed_chunk_rows(total: int | None) -> int:
    """The rows in a chunk where engines take chunks as they become free.

    There are about MIN_CLAIMED_CHUNKS chunks or more, so that all engines end at about one time.
    """
    rows = MAX_CLAIMED_ROWS if total is None else -(-total // MIN_CLAIMED_CHUNKS)
    return max(MIN_CLAIMED_ROWS, min(MAX_CLAIMED_ROWS, rows))


def stored_chunk_rows(settings: Mapping[str, Any]) -> int:
    """The rows in a chunk of an output whose run has these settings.

    Runs of earlier versions have no such setting; their chunks had 10,000 rows.
    """
    rows = settings.get(ROWS_PER_FILE)
    return rows if isinstance(rows, int) and 0 < rows < MAX_CHUNK_ROWS else CHUNK_ROWS


def parse_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """The shard named by `I/N`, or for `auto` by the variables of SLURM or torchrun.

    Raises UsageError, also where the variables are missing or name a shard that does not exist.
    """
    if text == "auto":
        return shard_of_environment(environment)
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 0 <= int(number) < int(count)):
        raise UsageError(
            f"--shard {text} is neither auto nor I/N",
            hint="I counts from 0, and N is the number of shards: --shard 0/4 to --shard 3/4",
        )
    return Shard(int(number), int(count))


def shard_of_environment(environment: Mapping[str, str]) -> Shard:
    """The shard of a task of a SLURM job array, of each task of a SLURM step, or of torchrun.

    The tasks of a step within an array divide the part of their array task.
    """
    names = environment.keys()
    # a batch script has SLURM_PROCID and SLURM_NTASKS too, but runs once: in an array, only a step
    tasks = "SLURM_STEP_NUM_TASKS"
    if "SLURM_ARRAY_TASK_ID" in names:
        number, count = array_task(environment)
    elif {"RANK", "WORLD_SIZE"} <= names:  # before SLURM_PROCID: srun may start torchrun
        number, count = counts(environment, "RANK", "WORLD_SIZE")
        tasks = ""
    elif "SLURM_PROCID" in names and {tasks, "SLURM_NTASKS"} & names:
        number, count = 0, 1
        tasks = tasks if tasks in names else "SLURM_NTASKS"
    else:
        raise UsageError(
            "--shard auto finds no SLURM array, no SLURM_PROCID and no RANK and WORLD_SIZE here",
            hint="write --shard I/N, I from 0",
        )
    if {"SLURM_PROCID", tasks} <= names:
        task, of = counts(environment, "SLURM_PROCID", tasks)
        number, count = number * of + task, count * of
    if not 0 <= number < count:
        raise UsageError(
            f"the environment names shard {number} of {count}, which does not exist",
            hint="submit a whole array, such as --array=0-7; or write --shard I/N",
        )
    return Shard(number, count)


def array_task(environment: Mapping[str, str]) -> tuple[int, int]:
    """The number of a task of a SLURM array, from 0, and the number of its tasks."""
    step = environment.get("SLURM_ARRAY_TASK_STEP", "1")
    if step != "1":
        raise UsageError(
            f"this SLURM array counts in steps of {step}",
            hint="submit it with a step of 1, such as --array=0-7, or write --shard I/N",
        )
    first = parse_count(environment.get("SLURM_ARRAY_TASK_MIN", "0"), "SLURM_ARRAY_TASK_MIN")
    number, count = counts(environment, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")
    return number - first, count


def counts(environment: Mapping[str, str], number: str, count: str) -> tuple[int, int]:
    """The whole numbers that two variables hold. Raises UsageError."""
    return (
        parse_count(environment.get(number, ""), number),
        parse_count(environment.get(count, ""), count),
    )


def parse_count(text: str, name: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r}, not a whole number", hint="write --shard I/N")
    return int(text)
