"""Runs programs alternately, and reports their speeds by stage beside the machine's limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

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
            runs[index].append(with_peak_memory(acts[index]))
    return runs


def with_peak_memory(act: Act) -> BenchRun:
    """The run with its peak GPU memory on top of the current, and the program's cached memory."""
    if not torch.cuda.is_available():
        return act()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run = act()
    peak = torch.cuda.max_memory_allocated() - before + run.kept_bytes
    return replace(run, peak_bytes=peak)


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


def speed(name: str, rows: int, seconds: Sequence[float]) -> Speed:
    return Speed(
        name, rows / median(seconds), rows / max(seconds), rows / min(seconds), tuple(seconds)
    )


def speedup(against: str, ours: Sequence[float], reference: Sequence[float]) -> Ratio:
    """The ratio of the times of runs over the same rows, paired by round."""
    rounds = [reference_run / run for run, reference_run in zip(ours, reference, strict=True)]
    return Ratio(against, median(reference) / median(ours), min(rounds), max(rounds))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Equal rows, and tokens before the first difference of their row, out of all rows and tokens.

    Only equal answers make speeds comparable.
    """

    against: str
    rows: int
    same_rows: int
    tokens: int
    same_tokens: int
    share: float


def agreement(against: str, ours: Tokens, reference: Tokens) -> Agreement:
    """Compare every row up to its first different token; later tokens have different prefixes."""
    pairs = list(zip(ours, reference, strict=True))
    same_rows = sum(tuple(row) == tuple(reference_row) for row, reference_row in pairs)
    tokens = sum(max(len(row), len(reference_row)) for row, reference_row in pairs)
    same = sum(common_prefix(row, reference_row) for row, reference_row in pairs)
    return Agreement(against, len(pairs), same_rows, tokens, same, same / tokens)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of the common prefix of two rows."""
    shortest = min(len(first), len(second))
    return next((n for n in range(shortest) if first[n] != second[n]), shortest)


@dataclass(frozen=True, slots=True)
class ProgramComparison:
    """All programs on the same rows; pgcli comes first, and the others are compared with it."""

    rows: int
    speeds: tuple[Speed, ...]
    ratios: tuple[Ratio, ...]
    agreements: tuple[Agreement, ...]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """A program's seconds by stage, medians over its runs, and the limit's share of them.

    `peak_bytes` is the peak GPU memory on top of the weights; None without a GPU.
    """

    name: str
    seconds: Stages
    shares: Stages
    share: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The whole report: from files to rows, the model alone with its stages, and their limit.

    `clock` and `model` describe the same runs, from pixels in memory to tokens: `clock` by the wall
    clock, `model` by the sum of the stages. `limit` is the lower bound of the seconds for the rows.
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
    clock: ProgramComparison
    model: ProgramComparison
    stages: tuple[StageTimes, ...]
    limit: Stages


def compare_programs(
    names: Sequence[str], runs: Sequence[Sequence[BenchRun]], *, of_model: bool
) -> ProgramComparison:
    """The speeds, ratios and agreements from the runs of all programs.

    By the wall clock after the start or, with `of_model`, by the sum of the model's stages.
    """
    own, rows = runs[0], len(runs[0][0].tokens)
    seconds = [
        [run.stages.total if of_model else run.clock_seconds for run in program] for program in runs
    ]
    speeds = [
        replace(
            speed(name, rows, times),
            start_seconds=median(run.start_seconds for run in program),
            busy=median(
                run.stages.total / spent for run, spent in zip(program, times, strict=True)
            ),
        )
        for name, program, times in zip(names, runs, seconds, strict=True)
    ]
    others = list(zip(names[1:], runs[1:], seconds[1:], strict=True))
    return ProgramComparison(
        rows,
        tuple(speeds),
        tuple(speedup(name, seconds[0], times) for name, _, times in others),
        tuple(agreement(name, own[-1].tokens, program[-1].tokens) for name, program, _ in others),
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
    total = median(stage.total for stage in stages)
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    return StageTimes(name, seconds, shares, limit.total / total, max(peaks, default=None))
