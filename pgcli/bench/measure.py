"""Runs of several programs taken in turns, A B B A, so that a machine's moods strike all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch

from pgcli.bench.work import Run

Act = Callable[[], Run]


def in_turns(acts: Sequence[Act], rounds: int) -> list[list[Run]]:
    """Each act's runs: every round has each of them once, and every second one goes backwards."""
    runs: list[list[Run]] = [[] for _ in acts]
    for number in range(rounds):
        order = range(len(acts))
        for place in order if number % 2 == 0 else reversed(order):
            runs[place].append(watched(acts[place]))
    return runs


def watched(act: Act) -> Run:
    """The run, with the most memory that a GPU held during it beyond what it held before."""
    if not torch.cuda.is_available():
        return act()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run = act()
    return replace(run, peak_bytes=torch.cuda.max_memory_allocated() - before)


@dataclass(frozen=True, slots=True)
class Speed:
    """A program's rows per second: the median of its runs, and the slowest and fastest."""

    name: str
    rows_per_second: float
    slowest: float
    fastest: float
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as `against` the first is: of medians, and of the rounds' extremes."""

    against: str
    times: float
    lowest: float
    highest: float


def speed(name: str, rows: int, seconds: Sequence[float]) -> Speed:
    return Speed(
        name, rows / median(seconds), rows / max(seconds), rows / min(seconds), tuple(seconds)
    )


def ratio(against: str, ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """From the seconds of runs of the same rows, in the order of their rounds."""
    rounds = [other / mine for mine, other in zip(ours, theirs, strict=True)]
    return Ratio(against, median(theirs) / median(ours), min(rounds), max(rounds))
