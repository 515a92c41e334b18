"""Shards: the parts of an output divided among commands in advance."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pgcli.errors import UsageError

ARRAY = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")
#: Set by srun. A batch script has SLURM_PROCID and SLURM_NTASKS too, but runs once.
STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
#: The variables of a task's index, from 0, and of the number of tasks. The first pair that is set
#: counts. torchrun and srun come before the schedulers of containers: the processes that they start
#: in a container all inherit its variables.
SCHEDULERS = (
    ARRAY,
    ("RANK", "WORLD_SIZE"),  # torchrun
    STEP,
    ("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"),
    ("BATCH_TASK_INDEX", "BATCH_TASK_COUNT"),  # Google Batch
    ("CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),  # Kubernetes sets no count: the manifest does
)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number`, `number + count`, `number + 2 * count` and so on, from 0."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, part: int) -> bool:
        """Whether the part of this number is in the shard."""
        return part % self.count == self.number


def parse_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """The shard of `I/N`, or for `auto` of a scheduler's variables.

    Raises UsageError, also if the variables are missing or name a shard that does not exist.
    """
    if text == "auto":
        return shard_of_environment(environment)
    number, _, count = text.partition("/")
    if not (_is_number(number) and _is_number(count) and int(number) < int(count)):
        raise UsageError(
            f"<--shard=> must be auto or I/N, not {text!r}",
            hint="I counts from 0, and N is the number of shards: <--shard 0/4> to <--shard 3/4>",
        )
    return Shard(int(number), int(count))


def shard_of_environment(environment: Mapping[str, str]) -> Shard:
    """The shard of this task, by the variables of the first scheduler in `SCHEDULERS`.

    The tasks of a SLURM step within an array divide the shard of their array task.
    """
    names = environment.keys()
    complete = [scheduler for scheduler in SCHEDULERS if names >= set(scheduler)]
    if not complete:
        for index, count in SCHEDULERS:
            if index in names:
                raise UsageError(
                    f"{index} is {environment[index]!r}, but {count} is not set",
                    hint=f"set {count} to the number of tasks, or write <--shard I/N>",
                )
        raise UsageError(
            "<--shard auto> finds no variables of a scheduler, such as SLURM_ARRAY_TASK_ID or RANK",
            hint="write <--shard I/N>, I from 0",
        )
    shard = _shard_of(*complete[0], environment)
    if complete[0] == ARRAY and STEP in complete:
        task = _shard_of(*STEP, environment)
        shard = Shard(shard.number * task.count + task.number, shard.count * task.count)
    return shard


def _shard_of(index: str, count: str, environment: Mapping[str, str]) -> Shard:
    """The shard that the variables of one scheduler name."""

    def value(name: str, least: int = 0) -> int:
        text = environment[name]
        if not _is_number(text) or int(text) < least:
            message = f"{name} must be a whole number of {least} or more, not {text!r}"
            raise UsageError(message, hint=hint)
        return int(text)

    hint, first = "write <--shard I/N>, I from 0", 0
    if (index, count) == ARRAY:
        hint = (
            "submit the whole array with a step of 1, such as --array=0-7, or write <--shard I/N>"
        )
        if (step := environment.get("SLURM_ARRAY_TASK_STEP", "1")) != "1":
            raise UsageError(f"SLURM_ARRAY_TASK_STEP must be 1, not {step!r}", hint=hint)
        first = value("SLURM_ARRAY_TASK_MIN") if "SLURM_ARRAY_TASK_MIN" in environment else 0
    number, total = value(index), value(count, least=1)
    if not first <= number < first + total:
        bounds = f"from {first} to {first + total - 1}, as {count} is {total}"
        raise UsageError(f"{index} must be {bounds}, not {number}", hint=hint)
    return Shard(number - first, total)


def _is_number(text: str) -> bool:
    """Whether the text is a whole number of a size that shards have."""
    return re.fullmatch("[0-9]{1,9}", text) is not None
