"""Reads the truth in JSON documents: COCO's images, and the questions of VQA data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgcli.boxes import box_area
from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.evaluation.truth import Truths, group_values
from pgcli.inputs.foreign_manifests import foreign_manifest, read_head
from pgcli.inputs.readers import InputFile
from pgcli.labelled_rows import read_answers
from pgcli.regions import prompt_with_region
from pgcli.results.imports import coco
from pgcli.results.imports.json_values import InvalidValue, read_document, value_errors
from pgcli.results.imports.rows import TruthRows
from pgcli.results.imports.truth import AnnotatedImage, ImportCounts, ImportSettings
from pgcli.wording import with_notes

HINT = "--truth takes COCO's 'images' and 'annotations', and 'annotations' or 'data' of VQA"
MAX_BYTES = 2**30  # the answers of VQA's training part take 360 MB
QUESTION_IDS = ("question_id", "questionId")  # DocVQA's is the second


def add_document(file: InputFile, truths: Truths) -> None:
    """Add what a document of COCO or of a VQA data set says. Raises UsageError."""
    document = read_document(file, MAX_BYTES, hint=HINT)
    if not isinstance(document, Mapping):
        if problem := foreign_manifest(truths.name, read_head(file)):
            raise problem
        raise UsageError(f"{truths.name} is not an object of JSON", hint=HINT)
    records = question_records(document)
    with value_errors(truths.name, hint=HINT):
        if records is not None:
            add_questions(records, truths)
        else:
            add_coco(document, truths)


def add_coco(document: Mapping[str, Any], truths: Truths) -> None:
    """Add what is true of the images of COCO. Raises InvalidValue."""
    settings = ImportSettings(Path(), as_given=True)
    annotations = coco.read_images(document, settings)
    for image in annotations.images:
        add_image(image, truths, settings.counts, has_boxes=bool(annotations.labels))
    known = "boxes" if annotations.labels else "answers"
    truths.columns |= dict.fromkeys(("id", known))
    truths.swaps_sides = annotations.swaps_sides
    left_out = with_notes("", TruthRows(annotations, Path()).notes(settings.counts))
    if left_out:
        truths.remarks[left_out.removeprefix("; ")] = None


def question_records(document: Mapping[str, Any]) -> Sequence[Any] | None:
    """The records of questions with answers; None for a document of another kind."""
    for name in ("annotations", "data", "questions"):
        records = document.get(name)
        if isinstance(records, list) and records and question_id(records[0]) is not None:
            return records
    return None


def question_id(record: Any) -> str | None:
    """The id of the question of a record; None for a record of another kind."""
    known = record if isinstance(record, Mapping) else {}
    values = (known.get(name) for name in QUESTION_IDS)
    return next((str(value) for value in values if isinstance(value, int | str)), None)


def add_questions(records: Sequence[Any], truths: Truths) -> None:
    """Add the answers of each question, by the id of the question. Raises InvalidValue."""
    for number, record in enumerate(records, start=1):
        id_ = question_id(record)
        if id_ is None:
            raise InvalidValue(f"record {number} has no question_id")
        answers = read_answers(record.get("answers", record.get("answer")))
        if not answers:
            raise InvalidValue(
                f"question {id_} has no answers: a file of questions alone is not a truth"
            )
        truths.add((id_, None), RowTruth(answers, columns=group_values(record)))
        truths.columns |= dict.fromkeys(record)


def add_image(
    image: AnnotatedImage, truths: Truths, counts: ImportCounts, *, has_boxes: bool
) -> None:
    """Add the boxes and the texts of an image, whose name is its id.

    Texts of regions are left out where no prompt is stated, of which the region would be a part.
    """
    if has_boxes and (image.boxes or not image.left_out):
        boxes = tuple(box for box, _ in image.boxes)
        masks = tuple(mask for _, mask in image.boxes)
        areas = zip(boxes, image.areas, strict=True)
        truth = RowTruth(
            boxes=boxes,
            masks=None if masks and not any(masks) else masks,
            areas=tuple(box_area(box) if known is None else known for box, known in areas),
            crowds=image.crowds,
            size=(image.width, image.height) if image.is_stated else None,
        )
        truths.add((image.id, None), truth)
    for text in image.texts:
        prompt, size = text.prompt, (image.width, image.height)
        if prompt is not None:
            prompt = prompt_with_region(prompt, text.region, *size)
            truths.has_prompts = True
        elif text.region is not None:
            counts.leave_out("texts of regions", image.id)
            continue
        truths.add((image.id, prompt), RowTruth((text.text,)))
