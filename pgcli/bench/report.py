"""The report of a benchmark: results by scope, length and batch size, and each program's best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pgcli.bench.agreement import Agreement, agreement, histogram
from pgcli.bench.measure import Ratio, Speed, speed, speedup
from pgcli.bench.peak_rates import MachineRates
from pgcli.bench.roofline import Stages
from pgcli.bench.runner import BenchRun
from pgcli.bench.settings import Scope


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A program's seconds by stage, medians of its runs, and the limit's share of them."""

    name: str
    seconds: Stages
    shares: Stages
    share: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class SpeedLimit:
    """The least seconds for the rows; `untrimmed` is for a last layer that is not trimmed."""

    rows_per_second: float
    seconds: Stages
    untrimmed: Stages


@dataclass(frozen=True, slots=True)
class BenchResult:
    """One scope at one batch size: all programs on the same rows, this code first.

    `seen` is the number of rows by their number of tokens. Only the scope `device` has `splits` and
    a limit.
    """

    scope: Scope
    lengths: str
    batch_size: int
    rows: int
    speeds: tuple[Speed, ...]
    ratios: tuple[Ratio, ...]
    agreements: tuple[Agreement, ...]
    seen: dict[int, int]
    splits: tuple[StageTimes, ...] = ()
    limit: SpeedLimit | None = None


@dataclass(frozen=True, slots=True)
class BestResult:
    """Each program at its fastest batch size, this code first, and the ratios of their speeds."""

    scope: Scope
    lengths: str
    batch_sizes: tuple[int, ...]
    speeds: tuple[Speed, ...]
    times: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The whole report; `sharing` is true if both programs used one copy of the weights."""

    device: str
    dtype: str
    torch: str
    transformers: str
    attention: dict[str, str]
    sharing: bool
    images: int
    prompts: tuple[str, ...]
    rounds: int
    machine: MachineRates
    results: tuple[BenchResult, ...]
    best: tuple[BestResult, ...]
    left_out: tuple[str, ...]


def result(
    scope: Scope, lengths: str, batch: int, names: Sequence[str], runs: Sequence[Sequence[BenchRun]]
) -> BenchResult:
    """The speeds, ratios and agreements of a scope from the runs of all programs."""
    mine, rows = runs[0], len(runs[0][0].tokens)
    seconds = [[_seconds(run, scope) for run in of_one] for of_one in runs]
    others = list(zip(names[1:], runs[1:], seconds[1:], strict=True))
    return BenchResult(
        scope=scope,
        lengths=lengths,
        batch_size=batch,
        rows=rows,
        speeds=tuple(speed(n, rows, taken) for n, taken in zip(names, seconds, strict=True)),
        ratios=tuple(speedup(name, seconds[0], taken) for name, _, taken in others),
        agreements=tuple(
            agreement(name, mine[-1].tokens, of_one[-1].tokens) for name, of_one, _ in others
        ),
        seen=histogram(mine[-1].tokens),
    )


def split(name: str, runs: Sequence[BenchRun], limit: Stages) -> StageTimes:
    """A program's time by stage, and the limit's share of it."""
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
    return StageTimes(name, taken, shares, limit.total / total, max(peaks, default=None))


def best(results: Sequence[BenchResult]) -> tuple[BestResult, ...]:
    """Every program's fastest batch size for each scope and length."""
    found = []
    for scope, lengths in dict.fromkeys((one.scope, one.lengths) for one in results):
        alike = [one for one in results if (one.scope, one.lengths) == (scope, lengths)]
        tops = [_fastest(alike, program) for program in range(len(alike[0].speeds))]
        speeds = tuple(one.speeds[program] for program, one in enumerate(tops))
        times = tuple(speeds[0].rows_per_second / other.rows_per_second for other in speeds[1:])
        found.append(
            BestResult(scope, lengths, tuple(one.batch_size for one in tops), speeds, times)
        )
    return tuple(found)


def _fastest(results: Sequence[BenchResult], program: int) -> BenchResult:
    return max(results, key=lambda one: one.speeds[program].rows_per_second)


def _seconds(run: BenchRun, scope: Scope) -> float:
    return run.stages.total if scope == "device" else run.seconds
