"""The files of a run that people read, without PyTorch: its status, metrics and curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
BLUE, ORANGE, GREEN = "#1763b6", "#c0501e", "#2c7a3f"
GREY, BLACK = "#dddddd", "#222222"
MAX_TICKS = 6

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class TrainingStatus:
    """The status of a training run. `state` is running, complete or stopped.

    `step` of `steps` updates are done; `loss` is the latest, and `best` has the values of the best
    evaluation, once the run has stopped.
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
    last, best = lines[-1] if lines else {}, result.get("best") or {}
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
        path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def append_metrics(file: Path, line: Mapping[str, Any]) -> None:
    """Write the line of an update. Raises OutputFailed."""
    values = {key: round6(x) if isinstance(x, float) else x for key, x in line.items()}
    with wrap_write_errors(file), file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(values) + "\n")


class CurvesPanel(NamedTuple):
    """A plot over the steps: a line, and evaluations as dots."""

    title: str
    line: Points = ()
    dots: Points = ()

    def range(self) -> tuple[float, float]:
        """The range of the y axis: from 0 if the lowest value is below half the highest."""
        values = [y for _, y in (*self.line, *self.dots)] or [0.0]
        low, high = min(values), max(values)
        low = 0.0 if 0 <= low <= high / 2 else low
        return low, high if high > low else low + (abs(low) or 1.0)


def write_curves(
    file: Path, lines: Sequence[Mapping[str, Any]], best_step: float | None = None
) -> None:
    """Draw the loss, the metrics of the evaluations and the learning rate.

    Removes temporary files of killed processes: only one process at a time writes the file.
    """
    if not lines:
        return
    panels, last, scale = curves_panels(lines), lines[-1]["step"], SUPERSAMPLING
    columns = min(len(panels), COLUMNS)
    size = WIDTH * columns * scale, HEIGHT * -(-len(panels) // columns) * scale
    canvas = Image.new("RGB", size, "white")
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        corner = WIDTH * column, HEIGHT * row
        _draw_panel(ImageDraw.Draw(canvas), panel, corner, last, best_step)
    with published(file, is_owner=True) as path:
        canvas.reduce(scale).save(path, "PNG", optimize=True)


def curves_panels(lines: Sequence[Mapping[str, Any]]) -> list[CurvesPanel]:
    """The loss, the first metrics of the evaluations, and the learning rate."""
    loss = _points(lines, "loss")
    evaluations = _points(lines, "eval_loss")
    title = "loss (dots: evaluation)" if evaluations else "loss"
    panels = [CurvesPanel(title, loss, evaluations)]
    names = dict.fromkeys(name for line in lines for name in line if name.startswith("eval_"))
    for name in [name for name in names if name != "eval_loss"][: MAX_PANELS - 2]:
        points = _points(lines, name)
        title = name.removeprefix("eval_").replace("_", " ")
        panels.append(CurvesPanel(title, points, points))
    return [*panels, CurvesPanel("learning rate", _points(lines, "learning_rate"))]


def _points(lines: Sequence[Mapping[str, Any]], name: str) -> Points:
    """The finite values by step."""
    values = ((line["step"], line.get(name)) for line in lines)
    return [(step, y) for step, y in values if y is not None and math.isfinite(y)]


def _draw_panel(
    draw: ImageDraw.ImageDraw,
    panel: CurvesPanel,
    corner: tuple[int, int],
    last: int,
    best_step: float | None,
) -> None:
    scale = SUPERSAMPLING
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
    for step in round_ticks(0, last):
        if step.is_integer() and step <= last:
            text(step, low, f"{step:,.0f}", (0, 6), "mt")
    text(last / 2, low, "step", (0, 21), "mt")
    values = [value for step, value in panel.dots if step == best_step]
    at_best = f", {values[0]:.4g} at the best step, {best_step:,.0f}" if values else ""
    text(0, high, panel.title + at_best, (0, -10), "ls")
    if best_step is not None:
        draw.line([at(best_step, low), at(best_step, high)], fill=GREEN, width=scale)
    if len(panel.line) > 1:
        draw.line([at(*point) for point in panel.line], fill=BLUE, width=2 * scale)
    for point in panel.dots:
        draw.circle(at(*point), 2.5 * scale, fill=ORANGE)


def round_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, from at most `low` to at least `high`."""
    least = (high - low or 1.0) / (MAX_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least * (1 - 1e-9))
    numbers = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    return [number * step for number in numbers]
