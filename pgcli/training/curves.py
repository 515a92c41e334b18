"""Draws `curves.png` from the lines of metrics, with Pillow alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from pgcli.stores.writing import published

WIDTH, HEIGHT = 420, 300  # of a panel, in pixels
PANELS_IN_A_ROW = 4
LEFT, TOP, RIGHT, BOTTOM = 62, 40, 18, 40
SUPERSAMPLING = 2
FAINT, BLUE, ORANGE, GREY, BLACK = "#c5d6ea", "#1763b6", "#c0501e", "#cccccc", "#222222"
SMOOTHED_SHARE = 0.05  # of all updates: the window of the moving average
MAX_POINTS = 2_000  # per line; more are not visible

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class CurvesPanel:
    """A plot over the steps: faint and dark lines, and evaluations as dots."""

    title: str
    faint: Points = ()
    line: Points = ()
    dots: Points = ()

    def range(self) -> tuple[float, float]:
        """The range of the y axis; the faint line may exceed it."""
        values = [y for _, y in (*self.line, *self.dots)] or [0.0]
        low, high = min(values), max(values)
        margin = (high - low or abs(high) or 1.0) * 0.06
        return max(low - margin, min(low, 0.0)), high + margin


def write_curves(file: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Draw the loss, the learning rate and every metric of the evaluations.

    Removes temporary files of killed processes: only one process at a time writes the file.
    """
    if not lines:
        return
    for temporary in file.parent.glob(f".{file.name}.*"):
        temporary.unlink(missing_ok=True)
    panels = list(_panels(lines))
    image = draw_panels(panels, steps=(lines[0]["step"], lines[-1]["step"]))
    with published(file) as path:
        image.save(path, "PNG", optimize=True)


def draw_panels(panels: Sequence[CurvesPanel], *, steps: tuple[int, int]) -> Image.Image:
    """The panels side by side, in rows of four, from the first of the steps to the last."""
    scale, columns = SUPERSAMPLING, min(len(panels), PANELS_IN_A_ROW)
    size = WIDTH * columns * scale, HEIGHT * -(-len(panels) // columns) * scale
    canvas = Image.new("RGB", size, "white")
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        _draw_panel(ImageDraw.Draw(canvas), panel, (WIDTH * column, HEIGHT * row), steps)
    return canvas.reduce(scale)


def _panels(lines: Sequence[Mapping[str, Any]]) -> Iterator[CurvesPanel]:
    loss = _points(lines, "loss")
    span = max(1, round(len(loss) * SMOOTHED_SHARE))
    yield CurvesPanel(
        "loss: training, and evaluation (dots)",
        _thinned(loss),
        _thinned(_smoothed(loss, span)),
        _points(lines, "eval_loss"),
    )
    names = dict.fromkeys(name for line in lines for name in line if name.startswith("eval_"))
    for name in names:
        if name != "eval_loss":
            points = _points(lines, name)
            yield CurvesPanel(name.removeprefix("eval_").replace("_", " "), (), points, points)
    yield CurvesPanel("learning rate", (), _thinned(_points(lines, "learning_rate")))


def _points(lines: Sequence[Mapping[str, Any]], name: str) -> Points:
    return [(line["step"], line[name]) for line in lines if line.get(name) is not None]


def _thinned(points: Points) -> Points:
    return points[:: max(1, len(points) // MAX_POINTS)]


def _smoothed(points: Points, span: int) -> Points:
    """The moving average over `span` values."""
    smoothed, total = [], 0.0
    for index, (step, value) in enumerate(points):
        total += value - (points[index - span][1] if index >= span else 0.0)
        smoothed.append((step, total / min(span, index + 1)))
    return smoothed


def _draw_panel(
    draw: ImageDraw.ImageDraw, panel: CurvesPanel, corner: tuple[int, int], steps: tuple[int, int]
) -> None:
    scale, (low, high), (first, last) = SUPERSAMPLING, panel.range(), steps
    font = ImageFont.load_default(11 * scale)
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(step: float, value: float) -> tuple[float, float]:
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        x = corner[0] + LEFT + inner_width * (step - first) / max(1, last - first)
        return x * scale, (corner[1] + HEIGHT - BOTTOM - inner_height * share) * scale

    def text(step: float, value: float, words: str, shift: tuple[int, int], anchor: str) -> None:
        x, y = at(step, value)
        place = x + shift[0] * scale, y + shift[1] * scale
        draw.text(place, words, fill=BLACK, font=font, anchor=anchor)

    for quarter in range(5):
        value = low + (high - low) * quarter / 4
        draw.line([at(first, value), at(last, value)], fill=GREY, width=1)
        text(first, value, f"{value:.3g}", (-6, 0), "rm")
    for step, anchor in ((first, "lt"), (last, "rt")):
        text(step, low, f"{step:,}", (0, 8), anchor)
    text((first + last) / 2, low, "step", (0, 8), "mt")
    text(first, high, panel.title, (0, -10), "ls")
    for points, colour, width in ((panel.faint, FAINT, 1), (panel.line, BLUE, 2)):
        if len(points) > 1:
            draw.line([at(*point) for point in points], fill=colour, width=width * scale)
    for point in panel.dots:
        x, y = at(*point)
        radius = 2.5 * scale
        draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=ORANGE)
