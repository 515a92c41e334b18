"""The metrics that rows of a task are measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pgcli.evaluation import text_measures as text
from pgcli.evaluation.detection import box_accuracy, detection_measures
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.masks import mask_measures
from pgcli.evaluation.measures import Measure
from pgcli.records import BOX_TASKS, Task

#: Tasks by the first word of their prompts.
PROMPT_TASKS: Mapping[str, Task] = {
    "caption": "caption",
    "detect": "detect",
    "segment": "segment",
    "ocr": "ocr",
}
VQA_ANSWERS = 10  # of a question, which `auto` knows VQA by


class Metric(NamedTuple):
    """How a metric is computed, and what it needs of the truth and of rows."""

    measure: Callable[[Sequence[JoinedRow]], list[Measure]]
    needs: str


METRICS: Mapping[str, Metric] = {
    "exact": Metric(text.exact_measures, "answers"),
    "vqa": Metric(text.vqa_measures, "answers"),
    "anls": Metric(text.anls_measures, "answers"),
    "relaxed": Metric(text.relaxed_measures, "answers"),
    "cider": Metric(text.cider_measures, "answers"),
    "ap": Metric(detection_measures, "boxes"),
    "acc@0.5": Metric(box_accuracy, "boxes"),
    "miou": Metric(mask_measures, "masks"),
    "accuracy": Metric(text.accuracy_measures, "answers"),
}


def task_of_prompt(prompt: str | None) -> Task:
    """The task of a prompt, by its first word."""
    return PROMPT_TASKS.get((prompt or "").partition(" ")[0], "ask")


def metrics_of(task: str, rows: Sequence[JoinedRow]) -> list[str]:
    """The metrics of rows of one task."""
    truths = [row.truth for row in rows if row.truth is not None]
    if task in ("embed", "score"):
        return ["retrieval"]
    if task == "classify":
        return ["accuracy"]
    if task == "segment" and has_pixels(rows) and any(any(one.masks or ()) for one in truths):
        return ["miou"]
    if task in BOX_TASKS:
        is_single = bool(truths) and all(len(one.boxes or ()) == 1 for one in truths)
        return ["ap", "acc@0.5"] if is_single else ["ap"]
    if task == "caption":
        return ["cider"]
    if text.is_yes_no(rows):
        return ["accuracy"]
    if truths and all(len(one.answers) == VQA_ANSWERS for one in truths):
        return ["vqa"]
    return ["anls" if task == "ocr" or any(len(t.answers) > 1 for t in truths) else "exact"]


def has_pixels(rows: Sequence[JoinedRow]) -> bool:
    """Whether a mask of the rows has pixels."""
    return any(any(row.masks) for row in rows)
