"""The files of a run that people read, without PyTorch: its status, metrics and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from pgcli.output.reader import state_folder
from pgcli.rows import round6
from pgcli.run.state.owner import LOCK
from pgcli.stores import LocalStore
from pgcli.stores.files import read_json, read_text
from pgcli.stores.writing import published, wrap_write_errors

RUN_FILE = "run.json"
METRICS = "metrics.jsonl"
MAX_PANELS, COLUMNS = 6, 3
WIDTH, HEIGHT = 420, 300  # of a panel, in pixels
LEFT, TOP, RIGHT, BOTTOM = 62, 40, 18, 40
SUPERSAMPLING = 2
FAINT, BLUE, ORANGE, GREEN = "#c5d6ea", "#1763b6", "#c0501e", "#2c7a3f"
GREY, BLACK = "#dddddd", "#222222"
SMOOTHED_SHARE = 0.05  # of all updates: the window of the moving average
MAX_POINTS = 2_000  # per line; more are not visible
MAX_TICKS = 6

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class TrainingStatus:
    """The status of a training run. `state` is running, complete or stopped.

    `step` of `steps` updates are done; `loss` is the latest, and `best` has the values of the best
    evaluation.
    """

    output: str
    state: str
    step: int
    steps: int | None
    loss: float | None
    best: dict[str, float]

    def facts(self) -> list[tuple[str, str]]:
        """The status as names and texts."""
        of = f" of {self.steps:,}" if self.steps else ""
        facts = [("output", self.output), ("state", self.state), ("steps", f"{self.step:,}{of}")]
        if self.loss is not None:
            facts.append(("loss", f"{self.loss:.4g}"))
        if self.best:
            values = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.best.items())
            facts.append(("best", ", ".join(values)))
        if self.state == "stopped":
            facts.append(("to resume", "run the same command again"))
        return facts


def read_training_status(output: str) -> TrainingStatus | None:
    """The status of the training run in a folder; None for another output."""
    folder = Path(output)
    record: dict[str, Any] | None = read_json(folder / RUN_FILE) if folder.is_dir() else None
    if record is None or "settings" not in record:
        return None
    lines, result = read_metrics(folder / METRICS), record.get("result", {})
    state = "complete" if result.get("complete") else "stopped"
    held = state_folder(folder)
    if held.is_dir() and LocalStore(held).is_locked(LOCK):
        state = "running"
    evaluations = [line for line in lines if "eval_loss" in line]
    best = result.get("best") or {
        name.removeprefix("eval_"): value
        for name, value in (evaluations[-1] if evaluations else {}).items()
        if name == "step" or name.startswith("eval_")
    }
    last = lines[-1] if lines else {}
    return TrainingStatus(
        output, state, last.get("step", 0), record.get("steps"), last.get("loss"), best
    )


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The complete lines of the file; empty if it does not exist."""
    if not file.exists():
        return []
    lines = []
    for line in read_text(file).splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # a killed process truncated the last line
            break
    return lines


def remove_later_metrics(file: Path, step: int) -> None:
    """Keep the lines up to this step. Raises OutputFailed."""
    kept = [line for line in read_metrics(file) if line["step"] <= step]
    with published(file, is_owner=True) as path:
        path.write_text("".join(map(_text, kept)), encoding="utf-8")


def append_metrics(file: Path, line: Mapping[str, Any]) -> None:
    """Write the line of an update. Raises OutputFailed."""
    values = {key: round6(x) if isinstance(x, float) else x for key, x in line.items()}
    with wrap_write_errors(file), file.open("a", encoding="utf-8") as stream:
        stream.write(_text(values))


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"


@dataclass(frozen=True)
class CurvesPanel:
    """A plot over the steps: faint and dark lines, and evaluations as dots.

    `from_zero` starts the y axis at 0, and small changes look small. Without it, the axis starts at
    0 only if the lowest value is at most half of the highest.
    """

    title: str
    faint: Points = ()
    line: Points = ()
    dots: Points = ()
    from_zero: bool = True

    def range(self) -> tuple[float, float]:
        """The range of the y axis; the faint line may exceed it."""
        values = [y for _, y in (*self.line, *self.dots)] or [0.0]
        low, high = min(values), max(values)
        if low >= 0 and (self.from_zero or low <= high / 2):
            low = 0.0
        return low, high if high > low else low + (abs(low) or 1.0)

    def titled(self, best_step: float | None) -> str:
        """The title, with the value at the best step."""
        values = [value for step, value in self.dots if step == best_step]
        at_best = f", {values[0]:.4g} at the best step, {best_step:,.0f}" if values else ""
        return self.title + at_best


@dataclass(frozen=True)
class Curves:
    """The panels of a run, from 0 to its last step; `best_step` has the best evaluation."""

    panels: Sequence[CurvesPanel]
    last_step: int
    best_step: float | None = None

    @property
    def step_ticks(self) -> list[int]:
        """Round numbers of steps for the x axis."""
        return [int(x) for x in round_ticks(0, self.last_step) if x in range(self.last_step + 1)]


def write_curves(
    file: Path, lines: Sequence[Mapping[str, Any]], best_step: float | None = None
) -> None:
    """Draw the loss, the metrics of the evaluations and the learning rate.

    Removes temporary files of killed processes: only one process at a time writes the file.
    """
    if not lines:
        return
    curves = Curves([*_panels(lines)], lines[-1]["step"], best_step)
    with published(file, is_owner=True) as path:
        draw_curves(curves).save(path, "PNG", optimize=True)


def _panels(lines: Sequence[Mapping[str, Any]]) -> Iterator[CurvesPanel]:
    """The loss, the first metrics of the evaluations, and the learning rate."""
    loss = _points(lines, "loss")
    span = max(1, round(len(loss) * SMOOTHED_SHARE))
    faint, smoothed = (_thinned(points) for points in (loss, _smoothed(loss, span)))
    evaluations = _points(lines, "eval_loss")
    title = "loss (dots: evaluation)" if evaluations else "loss"
    yield CurvesPanel(title, faint, smoothed, evaluations, from_zero=False)
    names = dict.fromkeys(name for line in lines for name in line if name.startswith("eval_"))
    for name in [name for name in names if name != "eval_loss"][: MAX_PANELS - 2]:
        points = _points(lines, name)
        yield CurvesPanel(name.removeprefix("eval_").replace("_", " "), (), points, points)
    yield CurvesPanel("learning rate", (), _thinned(_points(lines, "learning_rate")))


def _points(lines: Sequence[Mapping[str, Any]], name: str) -> Points:
    """The finite values by step."""
    values = ((line["step"], line.get(name)) for line in lines)
    return [(step, y) for step, y in values if y is not None and math.isfinite(y)]


def _thinned(points: Points) -> Points:
    return points[:: max(1, len(points) // MAX_POINTS)]


def _smoothed(points: Points, span: int) -> Points:
    """The moving average over `span` values."""
    smoothed, total = [], 0.0
    for index, (step, value) in enumerate(points):
        total += value - (points[index - span][1] if index >= span else 0.0)
        smoothed.append((step, total / min(span, index + 1)))
    return smoothed


def draw_curves(curves: Curves) -> Image.Image:
    """The panels in a grid."""
    panels, scale = len(curves.panels), SUPERSAMPLING
    columns = 2 if panels == 4 else min(panels, COLUMNS)
    rows = -(-panels // columns)
    canvas = Image.new("RGB", (WIDTH * columns * scale, HEIGHT * rows * scale), "white")
    for number, panel in enumerate(curves.panels):
        row, column = divmod(number, columns)
        _draw_panel(ImageDraw.Draw(canvas), panel, (WIDTH * column, HEIGHT * row), curves)
    return canvas.reduce(scale)


def _draw_panel(
    draw: ImageDraw.ImageDraw, panel: CurvesPanel, corner: tuple[int, int], curves: Curves
) -> None:
    scale, last = SUPERSAMPLING, curves.last_step
    ticks = round_ticks(*panel.range())
    low, high = ticks[0], ticks[-1]
    font = ImageFont.load_default(11 * scale)

    def at(step: float, value: float) -> tuple[float, float]:
        share = min(1.0, max(0.0, (value - low) / (high - low)))
        x = corner[0] + LEFT + (WIDTH - LEFT - RIGHT) * step / last
        y = corner[1] + HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
        return x * scale, y * scale

    def text(step: float, value: float, words: str, shift: tuple[int, int], anchor: str) -> None:
        x, y = at(step, value)
        position = x + shift[0] * scale, y + shift[1] * scale
        draw.text(position, words, fill=BLACK, font=font, anchor=anchor)

    for value in ticks:
        draw.line([at(0, value), at(last, value)], fill=GREY, width=scale)
        text(0, value, f"{value:.6g}", (-6, 0), "rm")
    for step in curves.step_ticks:
        text(step, low, f"{step:,}", (0, 6), "mt")
    text(last / 2, low, "step", (0, 21), "mt")
    text(0, high, panel.titled(curves.best_step), (0, -10), "ls")
    if curves.best_step is not None:
        draw.line([at(curves.best_step, low), at(curves.best_step, high)], fill=GREEN, width=scale)
    for points, colour, width in ((panel.faint, FAINT, 1), (panel.line, BLUE, 2)):
        if len(points) > 1:
            draw.line([at(*point) for point in points], fill=colour, width=width * scale)
    for point in panel.dots:
        draw.circle(at(*point), 2.5 * scale, fill=ORANGE)


def round_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from at most `low` to at least `high`."""
    least = (high - low or 1.0) / (MAX_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
    numbers = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    return [number * step for number in numbers]
