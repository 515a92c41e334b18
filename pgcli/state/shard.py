"""A part of an output's chunks, one of several processes' that share them out beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgcli.errors import UsageError

#: A chunk's rows: a number that every run of an output agrees on, whoever computes which chunk.
CHUNK_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Shard:
    """The chunks whose number leaves `number` when divided by `of`; from 0."""

    number: int
    of: int

    @property
    def part(self) -> str:
        """What the files of this shard's state have in their names."""
        return f"-{self.number}-of-{self.of}"

    def has(self, chunk: int) -> bool:
        """Whether the chunk is this shard's to compute."""
        return chunk % self.of == self.number

    def rows(self, total: int, chunk_rows: int) -> int:
        """How many of so many rows are this shard's."""
        chunks = range(self.number, -(-total // chunk_rows), self.of)
        return sum(min(chunk_rows, total - chunk * chunk_rows) for chunk in chunks)


def shard(text: str, environment: Mapping[str, str]) -> Shard:
    """The shard that `I/N` names, or that `auto` finds in a cluster's environment.

    Raises UsageError, also where the environment says nothing, or what cannot be counted through.
    """
    if text == "auto":
        return from_environment(environment)
    number, slash, of = text.partition("/")
    if not (slash and number.isdecimal() and of.isdecimal() and 0 <= int(number) < int(of)):
        raise UsageError(
            f"--shard {text} is neither auto nor I/N",
            hint="I counts from 0 and N is how many there are: --shard 0/4 to --shard 3/4",
        )
    return Shard(int(number), int(of))


def from_environment(environment: Mapping[str, str]) -> Shard:
    """The shard of a SLURM job array's task, or of a torchrun process."""
    task = environment.get("SLURM_ARRAY_TASK_ID")
    if task is not None:
        step = environment.get("SLURM_ARRAY_TASK_STEP", "1")
        first = environment.get("SLURM_ARRAY_TASK_MIN", "0")
        count = environment.get("SLURM_ARRAY_TASK_COUNT", "")
        if step != "1":
            raise UsageError(
                f"this SLURM array counts in steps of {step}",
                hint="submit it with a step of 1, as --array=0-7 is, or write --shard I/N",
            )
        number = whole(task, "SLURM_ARRAY_TASK_ID") - whole(first, "SLURM_ARRAY_TASK_MIN")
        of = whole(count, "SLURM_ARRAY_TASK_COUNT")
    elif "RANK" in environment and "WORLD_SIZE" in environment:
        number = whole(environment["RANK"], "RANK")
        of = whole(environment["WORLD_SIZE"], "WORLD_SIZE")
    else:
        raise UsageError(
            "--shard auto finds neither a SLURM array nor RANK and WORLD_SIZE here",
            hint="write --shard I/N, I from 0",
        )
    if not 0 <= number < of:
        raise UsageError(
            f"the environment says shard {number} of {of}, which there is not",
            hint="an array must be whole, as --array=0-7 is; or write --shard I/N",
        )
    return Shard(number, of)


def whole(text: str, name: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r}, no whole number", hint="write --shard I/N")
    return int(text)
