"""Runs programs alternately, and reports their speeds by stage beside the machine's limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from pgcli.bench.roofline import MachineRates, Stages
from pgcli.bench.runners import BenchRun

Act = Callable[[], BenchRun]
Tokens = Sequence[Sequence[int]]  # of each row


def in_turns(acts: Sequence[Act], rounds: int) -> list[list[BenchRun]]:
    """The runs of each program, one per round; every second round runs in reverse order."""
    runs: list[list[BenchRun]] = [[] for _ in acts]
    for number in range(rounds):
        order = range(len(acts))
        for index in order if number % 2 == 0 else reversed(order):
            runs[index].append(acts[index]())
    return runs


@dataclass(frozen=True, slots=True)
class Speed:
    """A program's rows per second: the median of its runs, the slowest and the fastest.

    `seconds` has the time of each run; `start_seconds`, also a median, passed before it. `busy` is
    the share of the time in which the model computed.
    """

    name: str
    rows_per_second: float
    slowest: float
    fastest: float
    seconds: tuple[float, ...]
    start_seconds: float = 0.0
    busy: float = 1.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """The speed relative to `against`: the ratio of medians, and its extremes over all rounds."""

    against: str
    times: float
    lowest: float
    highest: float


def speedup(against: str, ours: Sequence[float], reference: Sequence[float]) -> Ratio:
    """The ratio of the times of runs over the same rows, paired by round."""
    rounds = [reference_run / run for run, reference_run in zip(ours, reference, strict=True)]
    return Ratio(against, median(reference) / median(ours), min(rounds), max(rounds))


@dataclass(frozen=True, slots=True)
class Agreement:
    """The share of tokens before the first difference of their row, out of all `tokens`.

    Only equal answers make speeds comparable.
    """

    against: str
    tokens: int
    share: float


def agreement(against: str, ours: Tokens, reference: Tokens) -> Agreement:
    """Compare every row up to its first different token; later tokens have different prefixes."""
    pairs = list(zip(ours, reference, strict=True))
    tokens = sum(max(len(row), len(reference_row)) for row, reference_row in pairs)
    same = sum(
        len([*takewhile(lambda ids: ids[0] == ids[1], zip(*pair, strict=False))]) for pair in pairs
    )
    return Agreement(against, tokens, same / tokens)


@dataclass(frozen=True, slots=True)
class ProgramComparison:
    """All programs on the same rows; pgcli comes first, and the others are compared with it."""

    rows: int
    speeds: tuple[Speed, ...]
    ratios: tuple[Ratio, ...]
    agreements: tuple[Agreement, ...]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A program's seconds by stage, medians over its runs, and the limit's share of them."""

    name: str
    seconds: Stages
    shares: Stages
    share: float


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The whole report: from files to rows, the model alone with its stages, and their limit.

    `model` is from pixels in memory to tokens, by the wall clock, as `files` is; `stages` are of
    the same runs. `limit` is the lower bound of the seconds for the rows.
    """

    device: str
    dtype: str
    torch: str
    transformers: str
    attention: dict[str, str]
    batch_size: int
    answers: str
    machine: MachineRates
    files: ProgramComparison
    model: ProgramComparison
    stages: tuple[StageTimes, ...]
    limit: Stages


def compare_programs(names: Sequence[str], runs: Sequence[Sequence[BenchRun]]) -> ProgramComparison:
    """The speeds, ratios and agreements from the runs of all programs."""
    own, rows = runs[0], len(runs[0][0].tokens)
    times = [tuple(run.clock_seconds for run in program) for program in runs]
    return ProgramComparison(
        rows,
        tuple(
            Speed(
                name,
                rows / median(seconds),
                rows / max(seconds),
                rows / min(seconds),
                seconds,
                start_seconds=median(run.start_seconds for run in program),
                busy=median(run.stages.total / run.clock_seconds for run in program),
            )
            for name, program, seconds in zip(names, runs, times, strict=True)
        ),
        tuple(
            speedup(name, times[0], seconds)
            for name, seconds in zip(names[1:], times[1:], strict=True)
        ),
        tuple(
            agreement(name, own[-1].tokens, program[-1].tokens)
            for name, program in zip(names[1:], runs[1:], strict=True)
        ),
    )


def stage_times(name: str, runs: Sequence[BenchRun], limit: Stages) -> StageTimes:
    """A program's time by stage, and the limit's share of it."""
    stages = [run.stages for run in runs]
    seconds = Stages(
        median(stage.vision for stage in stages),
        median(stage.prefill for stage in stages),
        median(stage.decode for stage in stages),
    )
    shares = Stages(
        limit.vision / seconds.vision,
        limit.prefill / seconds.prefill,
        limit.decode / seconds.decode if seconds.decode else 0.0,  # zero for answers of one token
    )
    return StageTimes(name, seconds, shares, limit.total / median(stage.total for stage in stages))
