"""Shards: the chunks of an output divided among processes in advance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgcli.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shard:
    """The chunks whose number modulo `count` is `number`, from 0."""

    number: int
    count: int

    def has(self, chunk: int) -> bool:
        """Whether this shard computes the chunk."""
        return chunk % self.count == self.number


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

    def value(name: str, default: str = "") -> int:
        text = environment.get(name, default)
        if not text.isdecimal():
            raise UsageError(f"{name} is {text!r}, not a whole number", hint="write --shard I/N")
        return int(text)

    names, levels = environment.keys(), []  # the latter are numbers and counts
    # a batch script has SLURM_PROCID and SLURM_NTASKS too, but runs once: in an array, only a step
    tasks = "SLURM_STEP_NUM_TASKS"
    if "SLURM_ARRAY_TASK_ID" in names:
        if (step := environment.get("SLURM_ARRAY_TASK_STEP", "1")) != "1":
            raise UsageError(
                f"this SLURM array counts in steps of {step}",
                hint="submit it with a step of 1, such as --array=0-7, or write --shard I/N",
            )
        number = value("SLURM_ARRAY_TASK_ID") - value("SLURM_ARRAY_TASK_MIN", "0")
        levels.append((number, value("SLURM_ARRAY_TASK_COUNT")))
    elif {"RANK", "WORLD_SIZE"} <= names:
        levels.append((value("RANK"), value("WORLD_SIZE")))
        tasks = ""  # srun may have started torchrun
    elif tasks not in names:
        tasks = "SLURM_NTASKS"
    if {"SLURM_PROCID", tasks} <= names:
        levels.append((value("SLURM_PROCID"), value(tasks)))
    if not levels:
        raise UsageError(
            "--shard auto finds no SLURM array, no SLURM_PROCID and no RANK and WORLD_SIZE here",
            hint="write --shard I/N, I from 0",
        )
    shard = Shard(0, 1)
    for number, count in levels:
        if not 0 <= number < count:
            raise UsageError(
                f"the environment names shard {number} of {count}, which does not exist",
                hint="submit a whole array, such as --array=0-7; or write --shard I/N",
            )
        shard = Shard(shard.number * count + number, shard.count * count)
    return shard
