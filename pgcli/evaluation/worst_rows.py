"""The page of an evaluation: its metrics, the calibration of boxes, and the worst rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pgcli.errors import NoInputError
from pgcli.evaluation.evaluate import Evaluation, FileMeasures, as_json
from pgcli.evaluation.joined_row import RowTruth
from pgcli.evaluation.measures import Estimate
from pgcli.output.reader import Row
from pgcli.records import BOX_TASKS
from pgcli.results.gallery.gallery_page import GalleryOptions, RowGroup, write_gallery
from pgcli.rows import box_to_dict, round6
from pgcli.run.progress.events import OnEvent

TRUTH = "truth"
HIDDEN = frozenset({"embedding"})  # columns that a page does not show


def write_worst_rows(
    files: Sequence[FileMeasures],
    evaluations: Sequence[Evaluation],
    differences: Mapping[str, Estimate],
    options: GalleryOptions,
    on_event: OnEvent,
) -> None:
    """Write the page: the rows with the lowest scores of the last file first.

    The files are side by side with the truth. Raises what `write_gallery` raises.
    """
    last = files[-1]
    names, scores_N = row_scores(last)
    worst = [
        number
        for number in np.argsort(scores_N, kind="stable").tolist()
        if last.joined.rows[number].row is not None
    ][: options.limit]
    if not worst:
        raise NoInputError(f"no rows of {last.joined.name} to show", hint="leave out --view")
    groups = [file_group(file, worst, last) for file in files]
    true = [
        truth_row(row.row, row.truth)
        for row in (last.joined.rows[number] for number in worst)
        if row.row is not None and row.truth is not None
    ]
    groups.append(RowGroup(last.joined.path, TRUTH, chosen=true))
    about = {
        "scores": sorted(set(names)),
        "files": [
            {"name": file.joined.name, **one.as_json(), "calibration": curve(file)}
            for file, one in zip(files, evaluations, strict=True)
        ],
        "differences": {name: as_json(one) for name, one in differences.items()},
    }
    write_gallery(groups, options, on_event, evaluation=about)


def row_scores(file: FileMeasures) -> tuple[list[str], np.ndarray]:
    """The name and the value of each row's score, by the first measure of its metric; NaN last."""
    count = len(file.joined.rows)
    names, scores_N = [""] * count, np.full(count, np.nan)
    for choice, (measure, *_) in file.by_choice:
        places = np.flatnonzero(choice.is_chosen)
        for place, score in zip(places.tolist(), measure.row_scores().tolist(), strict=True):
            if np.isnan(scores_N[place]):
                names[place], scores_N[place] = SCORE_NAMES.get(measure.name, measure.name), score
    return names, scores_N


#: The scores of rows, where they are not values of the metric.
SCORE_NAMES = {"ap": "f1@0.5"}


def file_group(file: FileMeasures, worst: Sequence[int], last: FileMeasures) -> RowGroup:
    """The rows of a file that are of the worst rows of the last, with their scores."""
    numbers = {row.key: number for number, row in enumerate(file.joined.rows)}
    names, scores_N = row_scores(file)
    chosen = []
    for place in worst:
        number = numbers.get(last.joined.rows[place].key)
        row = None if number is None else file.joined.rows[number].row
        if number is not None and row is not None:
            score = {names[number]: round6(float(scores_N[number]))} if names[number] else {}
            chosen.append({**shown(row), **score})
    return RowGroup(file.joined.path, file.joined.path.name, chosen=chosen)


def shown(row: Row) -> dict[str, Any]:
    """The row without columns that are too large to show."""
    return {name: value for name, value in row.items() if name not in HIDDEN}


def truth_row(row: Row, truth: RowTruth) -> dict[str, Any]:
    """What is true of a row, as a row of the same image and prompt."""
    known = {name: row.get(name) for name in ("index", "id", "image", "width", "height")}
    is_boxes = row.get("task") in BOX_TASKS and truth.boxes is not None
    masks = [
        None if mask is None else {"codes": [], "rle": {"size": mask.size, "counts": mask.counts}}
        for mask in truth.masks or ()
    ]
    return known | {
        "task": row.get("task"),
        "prompt": row.get("prompt"),
        "answer": None if is_boxes else answer_text(truth),
        "boxes": [box_to_dict(box, confidence=False) for box in truth.boxes or ()],
        "masks": masks,
        "model": TRUTH,
        "error": None,
    }


def answer_text(truth: RowTruth) -> str:
    """The true answers, each on a line, with the number of those that are equal."""
    counts = Counter(truth.answers)
    return "\n".join(f"{text} ({n} times)" if n > 1 else text for text, n in counts.items())


def curve(file: FileMeasures) -> dict[str, Any] | None:
    """The calibration of the boxes that were evaluated; None where there are none."""
    bins, error = file.calibration()
    if not bins:
        return None
    points = [[round6(one.confidence), round6(one.right), one.boxes] for one in bins]
    return {"bins": points, "error": round6(error)}
