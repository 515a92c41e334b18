"""Chooses the metrics of joined rows, and computes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgcli.errors import UsageError
from pgcli.evaluation.joined_file import JoinedFile
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure
from pgcli.evaluation.retrieval import products, retrieval_measures
from pgcli.evaluation.task_metrics import METRICS, has_pixels, metrics_of
from pgcli.evaluation.vqa import MATCHES_FOR_FULL_SCORE

VQA_LEAST = MATCHES_FOR_FULL_SCORE + 1  # true answers with which an answer can score 1


@dataclass(frozen=True)
class MetricChoice:
    """A metric, and which rows it is computed on."""

    metric: str
    is_chosen: np.ndarray


def choose(joined: JoinedFile, metric: str) -> list[MetricChoice]:
    """The metric for all rows, or with `auto` those of each task by what the truth says of it."""
    if metric != "auto":
        return [MetricChoice(metric, np.ones(len(joined.rows), bool))]
    by_metric: dict[str, np.ndarray] = {}
    for task in dict.fromkeys(row.task for row in joined.rows):
        is_task = np.array([row.task == task for row in joined.rows])
        for name in metrics_of(task, [row for row in joined.rows if row.task == task]):
            by_metric[name] = by_metric.get(name, False) | is_task
    return [MetricChoice(name, is_chosen) for name, is_chosen in by_metric.items()]


def compute(
    choice: MetricChoice, rows: Sequence[JoinedRow], texts: str | None, truth: str
) -> list[Measure]:
    """The measures of a choice. Raises UsageError where rows or truth lack what they need."""
    chosen = [row for row, is_chosen in zip(rows, choice.is_chosen, strict=True) if is_chosen]
    check_truth(choice.metric, chosen, truth)
    if choice.metric != "retrieval":
        return METRICS[choice.metric].measure(chosen)
    return retrieve(chosen, texts)


def check_truth(metric: str, rows: Sequence[JoinedRow], truth: str) -> None:
    """Raise UsageError where the truth does not say what the metric compares."""
    needs = METRICS[metric].needs if metric in METRICS else "answers"
    for row in rows:
        if row.truth is not None and not known(row.truth, needs):
            columns = ", ".join(row.truth.columns) or "none"
            raise UsageError(
                f"--metric {metric} needs {needs}, and {truth} has none for {row.id!r}",
                hint=f"its columns are: {columns}; {HINTS[needs]}",
            )
    if metric == "vqa" and all(len(row.truth.answers) < VQA_LEAST for row in rows if row.truth):
        raise UsageError(
            f"--metric vqa is for {VQA_LEAST} or more true answers of a question, and {truth} has "
            "fewer of each",
            hint="--metric exact is for one, and --metric anls for several",
        )
    if metric == "acc@0.5" and any(row.truth and len(row.truth.boxes or ()) > 1 for row in rows):
        raise UsageError(
            "--metric acc@0.5 compares one box of a row, and a row of the truth has several",
            hint="--metric ap is for any number of boxes",
        )
    if metric == "miou" and not has_pixels(rows) and any(row.boxes for row in rows):
        raise UsageError(
            "--metric miou needs masks, and the rows have codes only",
            hint="pgcli segment --mask-decoder FILE decodes them",
        )


HINTS = {
    "answers": "--answer-column NAME names the column of the answer",
    "boxes": "'boxes' is a list of {label, xmin, ymin, xmax, ymax} in pixels",
    "masks": "'masks' is a list of masks, one for each of 'boxes'",
}


def known(truth: Any, needs: str) -> bool:
    """Whether the truth says what is needed."""
    return bool(truth.answers) if needs == "answers" else getattr(truth, needs) is not None


def retrieve(rows: Sequence[JoinedRow], texts: str | None) -> list[Measure]:
    """Recall by the scores of the rows, or by their embeddings and those of a file of texts."""
    true = [answer for row in rows if row.truth is not None for answer in row.truth.answers]
    if has_column(rows, "scores"):
        names, similarity_NM = scores_of(rows)
        check_texts(true, names, "the rows have no score of it", "score them with --texts-file")
        return retrieval_measures(rows, names, lambda part: similarity_NM[:, part])
    if not has_column(rows, "embedding"):
        raise UsageError(
            "--metric retrieval needs embeddings or scores", hint="pgcli embed and score write them"
        )
    if texts is None:
        raise UsageError(
            "the embeddings of the texts are not given",
            hint="--texts FILE names what pgcli embed --texts-file wrote of them",
        )
    vectors = text_vectors(texts)
    check_texts(true, vectors, f"{texts} has no embedding of it", "embed it with --texts-file")
    text_ME = np.stack(list(vectors.values()))
    width = text_ME.shape[1]
    image_NE = np.full((len(rows), width), np.nan, np.float32)
    for number, row in enumerate(rows):
        vector = (row.row or {}).get("embedding")
        if vector is not None:
            if len(vector) != width:
                raise UsageError(
                    f"embeddings have {len(vector)} numbers, and those of the texts {width}",
                    hint="embed both with the same model",
                )
            image_NE[number] = vector
    return retrieval_measures(rows, list(vectors), products(image_NE, text_ME))


def has_column(rows: Sequence[JoinedRow], name: str) -> bool:
    """Whether any of the rows has the column."""
    return any(name in (row.row or {}) for row in rows)


def scores_of(rows: Sequence[JoinedRow]) -> tuple[list[str], np.ndarray]:
    """The texts of the rows, and the cosines of each row with them; -inf where it has none."""
    numbers: dict[str, int] = {}
    found = [(row.row or {}).get("scores") or () for row in rows]
    for scores in found:
        for one in scores:
            numbers.setdefault(one["text"], len(numbers))
    similarity_NM = np.full((len(rows), len(numbers)), -np.inf, np.float32)
    for row, scores in enumerate(found):
        for one in scores:
            similarity_NM[row, numbers[one["text"]]] = one["cosine"]
    return list(numbers), similarity_NM


def text_vectors(name: str) -> dict[str, np.ndarray]:
    """The embedding of each text in a file of `pgcli embed`. Raises UsageError."""
    from pgcli.output.reader import read_results

    found = {
        str(row["text"]): np.array(row["embedding"], np.float32)
        for row in read_results(Path(name))
        if row.get("text") is not None and row.get("embedding") is not None
    }
    if not found:
        raise UsageError(f"{name} has no embedding of a text", hint="pgcli embed --texts-file FILE")
    return found


def check_texts(true: Sequence[str], known_texts: Any, problem: str, hint: str) -> None:
    """Raise UsageError for a true text that has no vector or score."""
    for one in true:
        if one not in known_texts:
            raise UsageError(f"a true text is {one!r}, and {problem}", hint=hint)
