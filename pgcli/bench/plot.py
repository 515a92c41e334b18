"""Plots images per second against batch size as an SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10
from xml.sax.saxutils import escape

from pgcli.bench.report import BenchReport, BenchResult
from pgcli.printable import printable

WIDTH, HEIGHT = 360, 260  # of a panel; each scope and length has one
LEFT, TOP, RIGHT, BOTTOM = 56, 64, 16, 44
CHARACTER_WIDTH = 5.5  # on average
COLOURS = ("#1763b6", "#b4481e", "#6b7a1e", "#666666")
SCOPE_NAMES = {"device": "device only", "arrays": "arrays to tokens", "files": "files to rows"}

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class PlotScales:
    """The logarithmic axes of a panel: batch sizes and speeds to pixels."""

    least: float
    most: float
    lowest: float
    highest: float

    def x(self, batch: float) -> float:
        span = max(1e-9, log2(self.most) - log2(self.least))
        inner = WIDTH - LEFT - RIGHT
        return LEFT + inner * (0.5 if span < 1e-6 else (log2(batch) - log2(self.least)) / span)

    def y(self, speed: float) -> float:
        span = log10(self.highest) - log10(self.lowest)
        inner = HEIGHT - TOP - BOTTOM
        return HEIGHT - BOTTOM - inner * (log10(speed) - log10(self.lowest)) / span


def plot_svg(report: BenchReport, title: str) -> str:
    """The plot: a panel for each scope and length, a line for each program."""
    kinds = dict.fromkeys((one.scope, one.lengths) for one in report.results)
    panels = [[one for one in report.results if (one.scope, one.lengths) == kind] for kind in kinds]
    width, height = WIDTH * len(panels), HEIGHT
    inside = "".join(
        f'<g transform="translate({WIDTH * number} 0)">{"".join(_panel(results))}</g>'
        for number, results in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f"{_text(LEFT, 16, title, size=13)}{inside}</svg>\n"
    )


def _panel(results: Sequence[BenchResult]) -> Iterator[str]:
    lines = _lines(results)
    scales = _scales(lines)
    first = results[0]
    yield _text(LEFT, 34, f"{SCOPE_NAMES[first.scope]}, answers of {first.lengths} tokens")
    for speed in _ticks(scales.lowest, scales.highest):
        y = scales.y(speed)
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        yield _text(LEFT - 6, y + 4, f"{speed:g}", anchor="end")
    for one in results:
        x = scales.x(one.batch_size)
        yield _text(x, HEIGHT - BOTTOM + 16, str(one.batch_size), anchor="middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "batch size", anchor="middle")
    legend_x = float(LEFT)
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        xy = [(scales.x(batch), scales.y(speed)) for batch, speed in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in xy)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in xy)
        yield _text(legend_x, 52, name, colour=colour)
        legend_x += CHARACTER_WIDTH * len(name) + 12


def _lines(results: Sequence[BenchResult]) -> dict[str, Points]:
    """Images per second by batch size of each program, and of the limit if there is one."""
    ordered = sorted(results, key=lambda one: one.batch_size)
    names = [speed.name for speed in ordered[0].speeds]
    lines: dict[str, Points] = {
        name: [(one.batch_size, one.speeds[index].rows_per_second) for one in ordered]
        for index, name in enumerate(names)
    }
    limits = [(one.batch_size, one.limit.rows_per_second) for one in ordered if one.limit]
    return lines | ({"limit": limits} if limits else {})


def _scales(lines: dict[str, Points]) -> PlotScales:
    points = [point for line in lines.values() for point in line]
    batches, speeds = [batch for batch, _ in points], [speed for _, speed in points]
    lowest, highest = floor(log10(min(speeds))), ceil(log10(max(speeds)))
    return PlotScales(min(batches), max(batches), 10.0**lowest, 10.0 ** max(highest, lowest + 1))


def _ticks(lowest: float, highest: float) -> list[float]:
    """Powers of ten, and their multiples by 2 and 5 if there are few."""
    powers = range(round(log10(lowest)), round(log10(highest)) + 1)
    steps = (1, 2, 5) if len(powers) <= 3 else (1,)
    return [step * 10.0**n for n in powers for step in steps if step * 10.0**n <= highest * 1.001]


def _text(
    x: float, y: float, words: str, *, size: int = 11, anchor: str = "start", colour: str = "#222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(printable(words))}</text>'
    )
