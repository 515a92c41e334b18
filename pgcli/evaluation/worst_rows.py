"""The page of an evaluation: metrics and the worst rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pgcli.errors import NoInputError
from pgcli.evaluation.evaluate import Evaluation, as_json
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Estimate, RowRatio
from pgcli.labels.labelled_image import LabelledImage
from pgcli.records import BOX_TASKS, Box, Mask
from pgcli.results.gallery.gallery_page import RowGroup, write_gallery
from pgcli.results.images import ImageLocator
from pgcli.results.options import GalleryOptions
from pgcli.rows import box_to_dict, mask_to_dict, round6

TRUTH = "truth"
HIDDEN = frozenset({"embedding"})  # columns that the page does not show
#: The measure that scores rows, if it is not the metric's first one.
SCORES = {"ap": "f1@0.5"}


def write_worst_rows(
    evaluations: Sequence[Evaluation],
    differences: Mapping[str, Estimate],
    options: GalleryOptions,
    locator: ImageLocator,
) -> None:
    """Write the page: the rows of the files beside the truth, lowest scores of the last file first.

    Raises the errors of `write_gallery`.
    """
    last = evaluations[-1]
    scores = {key: score for key, (_, score) in row_scores(last).items()}
    rows = [row for row in last.joined.rows if row.row is not None]
    worst = sorted(rows, key=lambda row: scores.get(row.key, np.inf))[: options.limit]
    if not worst:
        raise NoInputError(f"no rows of {last.joined.name} to show", hint="omit --view")
    groups = [scored_rows(evaluation, worst) for evaluation in evaluations]
    true = [truth_row(row) for row in worst if row.truth is not None]
    groups.append(RowGroup(last.joined.path, TRUTH, chosen=true))
    files = [{"name": file.joined.name, **file.as_json()} for file in evaluations]
    summary = {
        "scores": sorted({name for name, _ in row_scores(last).values()}),
        "files": files,
        "differences": {name: as_json(change) for name, change in differences.items()},
    }
    write_gallery(groups, options, locator, evaluation=summary)


def row_scores(evaluation: Evaluation) -> dict[tuple[str, str | None], tuple[str, float]]:
    """The name and value of each scored row's score, by the key of the row."""
    scores: dict[tuple[str, str | None], tuple[str, float]] = {}
    for chosen in evaluation.measured:
        ratios = {m.name: m for m in chosen.measures if isinstance(m, RowRatio)}
        measure = ratios[SCORES.get(chosen.metric, next(iter(ratios)))]
        for number, score in zip(chosen.numbers, measure.row_scores().tolist(), strict=True):
            # an empty answer is right where the truth is empty
            value = 1.0 if np.isnan(score) else score
            scores.setdefault(evaluation.joined.rows[number].key, (measure.name, value))
    return scores


def scored_rows(evaluation: Evaluation, worst: Sequence[JoinedRow]) -> RowGroup:
    """The file's rows with the keys of the worst rows, and their scores."""
    rows = {row.key: row for row in evaluation.joined.rows if row.row is not None}
    scores = row_scores(evaluation)
    chosen = []
    for key in (row.key for row in worst if row.key in rows):
        name, score = scores[key]
        row = rows[key].row or {}
        known = {column: value for column, value in row.items() if column not in HIDDEN}
        if row.get("boxes"):
            known["boxes"] = [box_to_dict(box) for box in rows[key].boxes]
        chosen.append(known | {name: round6(score)})
    return RowGroup(evaluation.joined.path, evaluation.joined.path.name, chosen=chosen)


def truth_row(joined: JoinedRow) -> dict[str, Any]:
    """The truth as a row of the same image and prompt."""
    row, truth = joined.row or {}, joined.truth or LabelledImage()
    known = {name: row.get(name) for name in ("index", "id", "image", "width", "height")}
    is_boxes = joined.task in BOX_TASKS and truth.boxes is not None
    masks = [mask and mask_to_dict(Mask((), mask)) for mask in truth.masks or ()]
    return known | {
        "task": row.get("task"),
        "prompt": row.get("prompt"),
        "answer": None if is_boxes else truth_text(truth),
        "boxes": [box_to_dict(Box(box.label, *box.corners, 1.0)) for box in truth.boxes or ()],
        "masks": masks,
        "model": TRUTH,
        "error": None,
    }


def truth_text(truth: LabelledImage) -> str:
    """The distinct true answers, one per line, with their counts."""
    counts = Counter(truth.answers)
    return "\n".join(f"{text} ({n} times)" if n > 1 else text for text, n in counts.items())
