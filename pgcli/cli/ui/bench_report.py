"""The report of `pgcli bench`: tables of speeds and stages, and how they were measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Facts
from pgcli.printable import printable

if TYPE_CHECKING:
    from pgcli.bench.peak_rates import MatmulRate
    from pgcli.bench.report import BenchReport, BenchResult, StageTimes
    from pgcli.bench.roofline import Stages

Rows = Sequence[tuple[str, ...]]

SPEEDS = ("scope", "tokens", "batch", "rows", "program", "images/s", "range", "ratio", "agreement")
STAGES = ("tokens", "batch", "program", "vision ms", "prefill ms", "decode ms", "share of limit")
SCOPES = {"device": "device only", "arrays": "arrays to tokens", "files": "files to rows"}
MAX_RANGES = 12  # of a histogram


def show(report: BenchReport) -> None:
    """Print tables on a terminal, or lines of cells separated by tabs in a pipe."""
    tables = ((SPEEDS, [*speeds(report)]), (STAGES, [*stages(report)]))
    for heads, rows in tables:
        if not rows:
            continue
        if stdout.draws_tables():
            stdout.print_tables(table(heads, rows), "")
        else:
            for cells in (heads, *rows):
                stdout.print_cells(cells)
            stdout.print_line("")
    stdout.print_facts(facts(report))


def table(heads: Sequence[str], rows: Rows) -> Table:
    """A table with text aligned to the left and numbers to the right."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    words = {"scope", "tokens", "program"}
    for head in heads:
        made.add_column(head, justify="left" if head in words else "right", no_wrap=True)
    for cells in rows:
        made.add_row(*(Text(printable(cell)) for cell in cells))
    return made


def speeds(report: BenchReport) -> Iterator[tuple[str, ...]]:
    """One row for each program and setting: speed, range, ratio and agreement."""
    for one in report.results:
        yield from compare_rows(one)
    if len({one.batch_size for one in report.results}) > 1:
        for top in report.best:
            times = ("", *(f"{times:.2f}" for times in top.times))
            for speed, batch, ratio in zip(top.speeds, top.batch_sizes, times, strict=True):
                where = (f"{SCOPES[top.scope]}, best", top.lengths, str(batch), "", speed.name)
                yield (*where, rate(speed.rows_per_second), "", ratio, "")


def compare_rows(one: BenchResult) -> Iterator[tuple[str, ...]]:
    """The rows of one result, this program first."""
    comparisons = [("", "")]
    for ratio, agreed in zip(one.ratios, one.agreements, strict=True):
        times = f"{ratio.times:.2f} ({ratio.lowest:.2f} to {ratio.highest:.2f})"
        comparisons.append((times, f"{share(agreed.share)} of {agreed.tokens} tokens"))
    where = (SCOPES[one.scope], one.lengths, str(one.batch_size), str(one.rows))
    for speed, comparison in zip(one.speeds, comparisons, strict=True):
        spread = f"{rate(speed.slowest)} to {rate(speed.fastest)}"
        yield (*where, speed.name, rate(speed.rows_per_second), spread, *comparison)


def stages(report: BenchReport) -> Iterator[tuple[str, ...]]:
    """The time of each program by stage, for one row of a batch, and the limit's time."""
    for one in report.results:
        if one.limit is None:
            continue
        where = (one.lengths, str(one.batch_size))
        for program in one.splits:
            yield (*where, program.name, *each(program.seconds, one.rows), shares(program))
        yield (*where, "limit", *each(one.limit.seconds, one.rows), "")


def each(seconds: Stages, rows: int) -> tuple[str, ...]:
    """The milliseconds of one row by stage."""
    return tuple(
        f"{1000 * s / rows:.3g}" for s in (seconds.vision, seconds.prefill, seconds.decode)
    )


def shares(program: StageTimes) -> str:
    """`61 %: 70, 65, 12`: the share of all stages together, then of each stage."""
    parts = (program.shares.vision, program.shares.prefill, program.shares.decode)
    return f"{share(program.share)}: " + ", ".join(f"{100 * part:.0f}" for part in parts)


def max_share(program: StageTimes) -> float:
    return max(program.shares.vision, program.shares.prefill, program.shares.decode)


def facts(report: BenchReport) -> Facts:
    """How and on what machine the tables were measured."""
    machine = report.machine
    products = sorted(machine.products, key=lambda one: one.flops_per_second)
    facts = [
        ("device", f"{machine.device}, {machine.threads} threads, {report.dtype}"),
        (
            "matrix products",
            f"{product(products[-1])} at most, {product(products[0])} at least",
        ),
        (
            "memory",
            f"{machine.copied_bytes_per_second / 1e9:.1f} GB/s copying, "
            f"{machine.read_bytes_per_second / 1e9:.1f} GB/s reading",
        ),
        (
            "transformers",
            f"{report.transformers}; attention: "
            + ", ".join(f"{kind} in {tower}" for tower, kind in report.attention.items()),
        ),
        (
            "weights",
            "one copy for both programs" if report.sharing else "one copy for each program",
        ),
        ("rounds", f"{report.rounds}, in turns; speeds are medians, ranges cover all rounds"),
    ]
    for one in report.results:
        if one.scope == "device" or "device" not in {other.scope for other in report.results}:
            facts.append((f"lengths, batch {one.batch_size}", histogram(one.seen)))
        for program in one.splits:
            if program.peak_bytes is not None:
                label = f"memory of {program.name}, batch {one.batch_size}"
                facts.append((label, f"{program.peak_bytes / 1e9:.2f} GB on top of the weights"))
    if any(max_share(program) > 1 for one in report.results for program in one.splits):
        facts.append(
            ("warning", "shares above 100 %: this machine was busier when its rates were measured")
        )
    return facts + [("not measured", reason) for reason in report.left_out]


def product(one: MatmulRate) -> str:
    """`421 GFLOP/s (vision fc1: 512 x 192 x 768)`."""
    shape = f"{one.rows} x {one.inner} x {one.outer}"
    return f"{one.flops_per_second / 1e9:,.0f} GFLOP/s ({one.name}: {shape})"


def histogram(seen: dict[int, int]) -> str:
    """`1 to 8: 12, 9 to 16: 30`: the number of rows by tokens, in a few equal ranges."""
    least, most = min(seen), max(seen)
    if least == most:
        return f"{least} tokens: {seen[least]} rows"
    wide = -(-(most - least + 1) // MAX_RANGES)
    bars = []
    for start in range(least, most + 1, wide):
        count = sum(rows for length, rows in seen.items() if start <= length < start + wide)
        end = min(start + wide - 1, most)
        bars.append(f"{start} to {end}: {count}" if end > start else f"{start}: {count}")
    return ", ".join(bars)


def rate(per_second: float) -> str:
    """A rate with three significant digits."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def share(part: float) -> str:
    """A share in percent; only a full share is 100 %."""
    return "100 %" if part == 1 else f"{100 * part:.1f} %" if part < 0.999 or part > 1 else "99.9 %"
