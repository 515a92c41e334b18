"""The accuracy of yes and no, like POPE's script, and of labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean, ratio
from pgcli.evaluation.metrics import YES_NO, Metric, is_yes_no

TOP = 5  # labels of a classifier


def measure_accuracy(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The measures of yes and no if all true answers are yes or no, else of labels."""
    return yes_no_measures(rows) if is_yes_no(rows) else label_measures(rows)


ACCURACY = Metric("answers", measure_accuracy)


def yes_no_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """Accuracy, precision, recall and F1 of `yes`, and the share of answers that are yes or no.

    Missing and failed rows count as wrong.
    """
    answers = [row.answer for row in rows]
    says = np.array(["" if answer is None else yes_or_no(answer) for answer in answers])
    true = np.array([truth.strip().lower() for row in rows for truth in row.true_answers or ("",)])
    says_yes, is_yes = says == "yes", true == "yes"
    both = says_yes & is_yes
    valid = [answer is not None and answer.strip().lower() in YES_NO for answer in answers]
    return [
        mean("accuracy", ((says == true) & (true != "")).tolist()),
        ratio("precision", both, says_yes),
        ratio("recall", both, is_yes),
        ratio("f1", 2 * both, says_yes.astype(float) + is_yes),
        mean("valid", valid),
    ]


def yes_or_no(answer: str) -> str:
    """POPE's reading of an answer: `no` if its first sentence has a no or not, else `yes`."""
    words = answer.partition(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"}.intersection(words) else "yes"


def label_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """Top-1 accuracy, and top-5 accuracy if rows have at least five labels."""
    truths = [{truth.strip() for truth in row.true_answers} for row in rows]
    labels = [labels_of(row) for row in rows]
    pairs = [*zip(rows, truths, strict=True)]
    first = [row.answer is not None and row.answer.strip() in truth for row, truth in pairs]
    accuracy: list[Measure] = [mean("accuracy", first)]
    if all(len(names) < TOP for names in labels):
        return accuracy
    top = [bool(truth.intersection(n[:TOP])) for n, truth in zip(labels, truths, strict=True)]
    return [*accuracy, mean(f"accuracy@{TOP}", top)]


def labels_of(row: JoinedRow) -> list[str]:
    """The labels of a classified row, best first."""
    labels = (row.row or {}).get("labels")
    if not isinstance(labels, list):
        return []
    return [str(label.get("label")).strip() for label in labels if isinstance(label, dict)]
