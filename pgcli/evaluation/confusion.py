"""The confusion matrix of labels: how often each true one was answered by each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pgcli.evaluation.evaluate import Evaluation
from pgcli.evaluation.joined_row import JoinedRow

METRICS = ("accuracy", "exact")
MAX_LABELS = 30  # of a matrix that fits a page
OTHERS, NO_ANSWER = "(others)", "(no answer)"


def confusion(evaluation: Evaluation) -> dict[str, Any] | None:
    """The matrix of the rows that are measured by their labels; None where there are none.

    `true` are the labels of its lines, the most frequent first, and `answered` those of its
    columns: the same, then other answers. Where there are many, the rare ones are in one line and
    one column. A text with more different true answers than that is no label.
    """
    chosen = [part for part in evaluation.measured if part.metric in METRICS]
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
    """The true and the answered label of each row; of several true ones, the one answered."""
    pairs = []
    for row in rows:
        true = [text.strip() for text in row.true_answers]
        if true:
            answer = NO_ANSWER if row.answer is None else row.answer.strip()
            pairs.append((answer if answer in true else true[0], answer))
    return pairs
