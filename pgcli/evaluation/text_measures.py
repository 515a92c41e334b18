"""Measures of answers that are texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pgcli.evaluation.cider import cider
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, RowRatio
from pgcli.evaluation.text_similarity import anls, is_exact, is_relaxed_match
from pgcli.evaluation.vqa import vqa_accuracy

TOP = 5  # labels of a classifier


def best_of(name: str, similarity: Callable[[str, str], float]) -> Callable[..., list[Measure]]:
    """The measure that is the mean over rows of the highest similarity with a true answer."""

    def measure(rows: Sequence[JoinedRow]) -> list[Measure]:
        scores = []
        for row in rows:
            truths = row.truth.answers if row.truth is not None else ()
            answer = row.answer
            known = () if answer is None else truths
            scores.append(max((similarity(answer or "", truth) for truth in known), default=0.0))
        return [RowRatio.mean(name, scores)]

    return measure


exact_measures = best_of("exact", is_exact)
anls_measures = best_of("anls", anls)
relaxed_measures = best_of("relaxed", is_relaxed_match)


def vqa_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean VQA accuracy; 0 for a row without an answer."""
    scores = [
        0.0
        if row.truth is None or row.answer is None
        else vqa_accuracy(row.answer, row.truth.answers)
        for row in rows
    ]
    return [RowRatio.mean("vqa", scores)]


def cider_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean CIDEr-D; surplus rows score 0."""
    known = [number for number, row in enumerate(rows) if row.truth is not None]
    truths = [row.truth.answers for row in rows if row.truth is not None]
    scores = np.zeros(len(rows))
    scores[known] = cider([rows[number].answer or "" for number in known], truths)
    return [RowRatio("cider", scores, np.ones(len(rows)))]


def is_yes_no(rows: Sequence[JoinedRow]) -> bool:
    """Whether all true answers are yes or no."""
    truths = [row.truth.answers for row in rows if row.truth is not None]
    return bool(truths) and all(len(one) == 1 and plain(one[0]) in YES_NO for one in truths)


YES_NO = ("yes", "no")


def plain(text: str | None) -> str:
    """The text in lower case without outer blanks."""
    return (text or "").strip().lower()


def accuracy_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The accuracy of yes and no as in POPE, or of labels."""
    return yes_no_measures(rows) if is_yes_no(rows) else label_measures(rows)


def yes_no_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """Accuracy, precision, recall and F1 of `yes`, and the share of answers that are yes or no."""
    found = np.array([plain(row.answer) for row in rows])
    true = np.array([plain(row.truth.answers[0]) if row.truth else "" for row in rows])
    is_known = true != ""
    says_yes, is_true_yes = found == "yes", true == "yes"
    both = (says_yes & is_true_yes).astype(np.float64)
    return [
        RowRatio.mean("accuracy", ((found == true) & is_known).tolist()),
        RowRatio("precision", both, says_yes.astype(np.float64)),
        RowRatio("recall", both, is_true_yes.astype(np.float64)),
        RowRatio("f1", 2 * both, says_yes.astype(np.float64) + is_true_yes),
        RowRatio.mean("valid", np.isin(found, YES_NO).tolist()),
    ]


def label_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose answer is the true label, and of those with it among the best five.

    The second is left out where rows have fewer than five labels.
    """
    first, top = [], []
    has_top = any(len(labels_of(row)) >= TOP for row in rows)
    for row in rows:
        truths = {truth.strip() for truth in row.truth.answers} if row.truth else set()
        first.append((row.answer or "").strip() in truths and row.answer is not None)
        top.append(bool(truths.intersection(labels_of(row)[:TOP])))
    measures: list[Measure] = [RowRatio.mean("accuracy", first)]
    return [*measures, RowRatio.mean(f"accuracy@{TOP}", top)] if has_top else measures


def labels_of(row: JoinedRow) -> list[str]:
    """The labels of a classified row, best first."""
    labels = (row.row or {}).get("labels")
    if not isinstance(labels, list):
        return []
    return [str(one.get("label")).strip() for one in labels if isinstance(one, dict)]
