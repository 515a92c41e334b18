"""The report of `pgcli bench`: tables of speeds and stages, and how they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pgcli.cli.ui import stdout
from pgcli.run.progress.events import Facts
from pgcli.run.progress.summary import rate
from pgcli.text import byte_count, duration, printable

if TYPE_CHECKING:
    from pgcli.bench.report import BenchReport, ProgramComparison
    from pgcli.bench.roofline import Stages

Rows = Sequence[tuple[str, ...]]

SPEEDS = [*"measured rows program start images/s range busy ratio agreement".split()]
STAGES = ("program", "vision ms", "prefill ms", "decode ms", "share of limit")
WORDS = {"measured", "program"}  # columns of text, which is aligned to the left


def show_benchmark(report: BenchReport) -> None:
    """Print tables on a terminal, or lines of cells separated by tabs in a pipe."""
    speeds = [
        *comparison_rows("files to rows", report.files),
        *comparison_rows("model, clock", report.clock),
        *comparison_rows("model, stages", report.model),
    ]
    for heads, rows in ((SPEEDS, speeds), (STAGES, [*stages(report)])):
        if stdout.draws_tables():
            stdout.print_tables(aligned_table(heads, rows), "")
        else:
            for cells in (heads, *rows):
                stdout.print_cells(cells)
            stdout.print_line("")
    stdout.print_facts(bench_facts(report))


def aligned_table(heads: Sequence[str], rows: Rows) -> Table:
    """A table with text aligned to the left and numbers to the right."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    for head in heads:
        made.add_column(head, justify="left" if head in WORDS else "right", no_wrap=True)
    for cells in rows:
        made.add_row(*(Text(printable(cell)) for cell in cells))
    return made


def comparison_rows(measured: str, comparison: ProgramComparison) -> Iterator[tuple[str, ...]]:
    """A row for each program, this one first: start, speed, busy, ratio and agreement of tokens."""
    ratios = [("", "")]
    for ratio, agreed in zip(comparison.ratios, comparison.agreements, strict=True):
        times = f"{ratio.times:.2f} ({ratio.lowest:.2f} to {ratio.highest:.2f})"
        ratios.append((times, f"{share_text(agreed.share)} of {agreed.tokens} tokens"))
    for speed, cells in zip(comparison.speeds, ratios, strict=True):
        spread = f"{rate(speed.slowest)} to {rate(speed.fastest)}"
        rows = str(comparison.rows)
        start = duration(speed.start_seconds) if speed.start_seconds else ""
        pace, busy = rate(speed.rows_per_second), f"{speed.busy:.0%}" if speed.busy < 1 else ""
        yield (measured, rows, speed.name, start, pace, spread, busy, *cells)


def stages(report: BenchReport) -> Iterator[tuple[str, ...]]:
    """The time of each program by stage for a row of a batch, and the limit."""
    for program in report.stages:
        parts = ", ".join(f"{100 * part:.0f}" for part in astuple(program.shares))
        shares = f"{share_text(program.share)}: {parts}"
        yield (program.name, *milliseconds(program.seconds, report.model.rows), shares)
    yield ("limit", *milliseconds(report.limit, report.model.rows), "")


def milliseconds(seconds: Stages, rows: int) -> tuple[str, ...]:
    """The milliseconds of one row by stage."""
    return tuple(f"{1000 * stage / rows:.3g}" for stage in astuple(seconds))


def bench_facts(report: BenchReport) -> Facts:
    """How and on what machine the tables were measured."""
    machine, peak = report.machine, report.machine.peak
    files, model = (len(part.speeds[0].seconds) for part in (report.files, report.model))
    attention = ", ".join(f"{kind} in {tower}" for tower, kind in report.attention.items())
    facts = [
        ("answers", f"{report.answers}; batches of {report.batch_size}"),
        ("device", f"{machine.device}, {machine.threads} threads, {report.dtype}"),
        (
            "limit",
            f"{peak.flops_per_second / 1e9:,.0f} GFLOP/s, {peak.bytes_per_second / 1e9:.1f} GB/s, "
            "the highest measured",
        ),
        ("transformers", f"{report.transformers}; attention: {attention}"),
        (
            "rounds",
            f"{files} of files, {model} of the model, alternating; medians, and ranges of all",
        ),
    ]
    for program in report.stages:
        if program.peak_bytes is not None:
            memory = f"{byte_count(program.peak_bytes)} on top of the weights"
            facts.append((f"memory of {program.name}", memory))
    if any(max(astuple(program.shares)) > 1 for program in report.stages):
        facts.append(
            ("warning", "shares above 100 %: this machine was busier when its rates were measured")
        )
    return facts


def share_text(part: float) -> str:
    """A share in percent; only a full share is 100 %."""
    return "100 %" if part == 1 else f"{100 * part:.1f} %" if part < 0.999 or part > 1 else "99.9 %"
