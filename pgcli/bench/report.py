"""The report of a benchmark: the speed of each program, by stage, beside the machine's limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from pgcli.bench.measure import Agreement, Ratio, Speed, agreement, speed, speedup
from pgcli.bench.peak_rates import MachineRates
from pgcli.bench.roofline import Stages
from pgcli.bench.runner import BenchRun


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
