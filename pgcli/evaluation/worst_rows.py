"""The page of an evaluation: metrics, the confusion matrix, and the worst rows."""

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
LABEL_METRICS = ("accuracy", "exact")
MAX_LABELS = 30  # fit on a page
OTHERS, NO_ANSWER = "(others)", "(no answer)"


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
    files = [
        {
            "name": file.joined.name,
            **file.as_json(),
            "confusion": confusion(file),
        }
        for file in evaluations
    ]
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


def confusion(evaluation: Evaluation) -> dict[str, Any] | None:
    """How often each true label was answered with each label; None without labels.

    `true` labels the lines, most frequent first, and `answered` the columns: the same labels, then
    other answers. Rare labels share a line and a column. With `exact`, more than MAX_LABELS
    different true answers are texts, not labels.
    """
    chosen = [part for part in evaluation.measured if part.metric in LABEL_METRICS]
    numbers = sorted({number for part in chosen for number in part.numbers.tolist()})
    pairs = label_pairs([evaluation.joined.rows[number] for number in numbers])
    true = [label for label, _ in Counter(label for label, _ in pairs).most_common()]
    is_text = all(part.metric == "exact" for part in chosen) and len(true) > MAX_LABELS
    if len(true) < 2 or is_text:
        return None
    lines = true if len(true) <= MAX_LABELS else [*true[: MAX_LABELS - 1], OTHERS]
    answers = [label for label, _ in Counter(label for _, label in pairs).most_common()]
    extra = [label for label in answers if label not in lines]
    room = max(1, MAX_LABELS - len(true))
    extra = extra if len(extra) <= room else [*extra[: room - 1], OTHERS]
    columns = [*lines, *(label for label in extra if label not in lines)]
    counts = Counter(
        (label if label in lines else OTHERS, answer if answer in columns else OTHERS)
        for label, answer in pairs
    )
    return {
        "true": lines,
        "answered": columns,
        "counts": [[counts[line, column] for column in columns] for line in lines],
    }


def label_pairs(rows: Sequence[JoinedRow]) -> list[tuple[str, str]]:
    """The true and the answered label of each row; with several true labels, the answered one."""
    pairs = []
    for row in rows:
        true = [text.strip() for text in row.true_answers]
        if true:
            answer = NO_ANSWER if row.answer is None else row.answer.strip()
            pairs.append((answer if answer in true else true[0], answer))
    return pairs
