"""Metrics, and the choice of metrics for a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pgcli import registry
from pgcli.errors import UsageError
from pgcli.records import BOX_TASKS, Task

if TYPE_CHECKING:
    from pgcli.evaluation.joined_row import JoinedRow
    from pgcli.evaluation.measures import Measure
    from pgcli.labels.labelled_image import LabelledImage


class Metric(NamedTuple):
    """What a metric needs of the truth (a key of HINTS), and the function from rows to measures.

    The function raises UsageError for unsuitable rows.
    """

    needs: str
    measures: Callable[..., list[Measure]]


HINTS = {
    "answers": "--answer-column NAME names the column of the answer",
    "boxes": "'boxes' is a list of {label, xmin, ymin, xmax, ymax} in pixels, and [] for none",
    "masks": "'masks' is a list of masks, one for each of 'boxes'",
}
#: Tasks by the first word of their prompts.
PROMPT_TASKS: Mapping[str, Task] = {
    "caption": "caption",
    "detect": "detect",
    "segment": "segment",
    "ocr": "ocr",
}
VQA_ANSWERS = 10  # of a question, by which `auto` recognizes VQA
YES_NO = ("yes", "no")


def measures(metric: str, rows: Sequence[JoinedRow], texts: str | None = None) -> list[Measure]:
    """The measures of a metric; retrieval takes the file of the texts' embeddings.

    Raises UsageError for rows without the data that the metric needs.
    """
    needs, measure = registry.load("metrics", metric)
    for row in rows:
        if row.truth is not None and not is_known(row.truth, needs):
            columns = ", ".join(row.truth.columns) or "none"
            raise UsageError(
                f"--metric {metric} needs {needs}, and the truth has none for {row.id!r}",
                hint=f"its columns with a value are: {columns}; {HINTS[needs]}",
            )
    own: list[Measure] = measure(rows, texts) if metric == "retrieval" else measure(rows)
    return own


def is_known(truth: LabelledImage, needs: str) -> bool:
    """Whether the truth has what a metric needs."""
    return bool(truth.answers) if needs == "answers" else getattr(truth, needs) is not None


def task_of_prompt(prompt: str | None) -> Task:
    """The task of a prompt, by its first word."""
    return PROMPT_TASKS.get((prompt or "").partition(" ")[0], "ask")


def metrics_of(task: str, rows: Sequence[JoinedRow]) -> list[str]:
    """The metrics of rows of one task, by what their truth says."""
    truths = [row.truth for row in rows if row.truth is not None]
    if task in ("embed", "score"):
        return ["retrieval"]
    if task == "classify":
        return ["accuracy"]
    if task == "segment" and has_pixels(rows) and any(any(truth.masks or ()) for truth in truths):
        return ["miou"]
    if task in BOX_TASKS:
        is_single = bool(truths) and all(len(truth.boxes or ()) == 1 for truth in truths)
        return ["ap", "acc@0.5"] if is_single else ["ap"]
    if task == "caption":
        return ["cider"]
    if is_yes_no(rows):
        return ["accuracy"]
    if truths and all(len(truth.answers) == VQA_ANSWERS for truth in truths):
        return ["vqa"]
    has_several = any(len(truth.answers) > 1 for truth in truths)
    return ["anls" if task == "ocr" or has_several else "exact"]


def has_pixels(rows: Sequence[JoinedRow]) -> bool:
    """Whether a mask of the rows has pixels."""
    return any(any(row.masks) for row in rows)


def is_yes_no(rows: Sequence[JoinedRow]) -> bool:
    """Whether all true answers are yes or no."""
    truths = [row.truth.answers for row in rows if row.truth is not None]
    return bool(truths) and all(len(t) == 1 and t[0].strip().lower() in YES_NO for t in truths)
