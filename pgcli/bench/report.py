"""What a bench comes to: a result for each scope, length and batch size, and each side's best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pgcli.bench.agreement import Agreement, agreement, histogram
from pgcli.bench.machine import Machine
from pgcli.bench.measure import Ratio, Speed, ratio, speed
from pgcli.bench.plan import Scope
from pgcli.bench.roofline import Stages
from pgcli.bench.work import Run


@dataclass(frozen=True, slots=True)
class Split:
    """A program's seconds by stage, medians of its runs, and their shares of the limit's."""

    name: str
    seconds: Stages
    shares: Stages
    share: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Limit:
    """The least seconds that the rows can take; `whole` with a last layer that is not trimmed."""

    rows_per_second: float
    seconds: Stages
    whole: Stages


@dataclass(frozen=True, slots=True)
class Result:
    """One scope at one batch size: all programs on the same rows, ours first.

    `seen` is how many rows have so many tokens. Stages and the limit are the device's own.
    """

    scope: Scope
    lengths: str
    batch_size: int
    rows: int
    speeds: tuple[Speed, ...]
    ratios: tuple[Ratio, ...]
    agreements: tuple[Agreement, ...]
    seen: dict[int, int]
    splits: tuple[Split, ...] = ()
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Best:
    """Each program at the batch size that is best for it, ours first, and how they compare."""

    scope: Scope
    lengths: str
    batch_sizes: tuple[int, ...]
    speeds: tuple[Speed, ...]
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All of it. `sharing` says whether both programs ran on one copy of the weights."""

    device: str
    dtype: str
    torch: str
    transformers: str
    attention: dict[str, str]
    sharing: bool
    pictures: int
    prompts: tuple[str, ...]
    rounds: int
    machine: Machine
    results: tuple[Result, ...]
    best: tuple[Best, ...]
    left_out: tuple[str, ...]


def result(
    scope: Scope, lengths: str, batch: int, names: Sequence[str], runs: Sequence[Sequence[Run]]
) -> Result:
    """A scope's speeds, ratios and agreement from all runs of all programs."""
    mine, rows = runs[0], len(runs[0][0].tokens)
    seconds = [[_seconds(run, scope) for run in side] for side in runs]
    others = list(zip(names[1:], runs[1:], seconds[1:], strict=True))
    return Result(
        scope=scope,
        lengths=lengths,
        batch_size=batch,
        rows=rows,
        speeds=tuple(speed(n, rows, taken) for n, taken in zip(names, seconds, strict=True)),
        ratios=tuple(ratio(name, seconds[0], taken) for name, _, taken in others),
        agreements=tuple(
            agreement(name, mine[-1].tokens, side[-1].tokens) for name, side, _ in others
        ),
        seen=histogram(mine[-1].tokens),
    )


def split(name: str, runs: Sequence[Run], limit: Stages) -> Split:
    """Where a program's time goes, and which share of it the limit would take."""
    stages = [run.stages for run in runs]
    taken = Stages(
        median(one.vision for one in stages),
        median(one.prefill for one in stages),
        median(one.decode for one in stages),
    )
    shares = Stages(
        limit.vision / taken.vision,
        limit.prefill / taken.prefill,
        limit.decode / taken.decode if taken.decode else 0.0,  # answers of one token have none
    )
    total = median(one.total for one in stages)
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    return Split(name, taken, shares, limit.total / total, max(peaks, default=None))


def best(results: Sequence[Result]) -> tuple[Best, ...]:
    """For each scope and length, every program's fastest batch size."""
    found = []
    for scope, lengths in dict.fromkeys((one.scope, one.lengths) for one in results):
        alike = [one for one in results if (one.scope, one.lengths) == (scope, lengths)]
        tops = [_fastest(alike, side) for side in range(len(alike[0].speeds))]
        speeds = tuple(one.speeds[side] for side, one in enumerate(tops))
        times = tuple(speeds[0].rows_per_second / other.rows_per_second for other in speeds[1:])
        found.append(Best(scope, lengths, tuple(one.batch_size for one in tops), speeds, times))
    return tuple(found)


def _fastest(results: Sequence[Result], side: int) -> Result:
    return max(results, key=lambda one: one.speeds[side].rows_per_second)


def _seconds(run: Run, scope: Scope) -> float:
    return run.stages.total if scope == "device" else run.seconds
