"""Shards: the chunks of an output divided among processes in advance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgcli.errors import UsageError

#: Rows in a chunk: a constant, so that all runs of an output agree on it.
CHUNK_ROWS = 10_000


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

    def rows(self, total: int) -> int:
        """The number of rows of this shard, of `total` rows."""
        chunks = range(self.number, -(-total // CHUNK_ROWS), self.count)
        return sum(min(CHUNK_ROWS, total - chunk * CHUNK_ROWS) for chunk in chunks)


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
    """The shard of a task of a SLURM job array, or of a torchrun process."""
    task = environment.get("SLURM_ARRAY_TASK_ID")
    if task is not None:
        step = environment.get("SLURM_ARRAY_TASK_STEP", "1")
        first = environment.get("SLURM_ARRAY_TASK_MIN", "0")
        if step != "1":
            raise UsageError(
                f"this SLURM array counts in steps of {step}",
                hint="submit it with a step of 1, such as --array=0-7, or write --shard I/N",
            )
        number = parse_count(task, "SLURM_ARRAY_TASK_ID")
        number -= parse_count(first, "SLURM_ARRAY_TASK_MIN")
        count = parse_count(environment.get("SLURM_ARRAY_TASK_COUNT", ""), "SLURM_ARRAY_TASK_COUNT")
    elif "RANK" in environment and "WORLD_SIZE" in environment:
        number = parse_count(environment["RANK"], "RANK")
        count = parse_count(environment["WORLD_SIZE"], "WORLD_SIZE")
    else:
        raise UsageError(
            "--shard auto finds neither a SLURM array nor RANK and WORLD_SIZE here",
            hint="write --shard I/N, I from 0",
        )
    if not 0 <= number < count:
        raise UsageError(
            f"the environment names shard {number} of {count}, which does not exist",
            hint="submit a whole array, such as --array=0-7; or write --shard I/N",
        )
    return Shard(number, count)


def parse_count(text: str, name: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r}, not a whole number", hint="write --shard I/N")
    return int(text)
