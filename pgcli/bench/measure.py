"""Runs several programs alternately (A B B A), so that load on the machine affects all alike.

Compares their speeds and their tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from pgcli.bench.runner import BenchRun

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
