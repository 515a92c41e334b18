"""Renders answers as an HTML table for notebooks, with thumbnails, boxes and masks."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.images.decode import load_thumbnail
from pgcli.images.in_memory import file_bytes
from pgcli.parsing import has_locations
from pgcli.printable import printable
from pgcli.records import BOX_TASKS, Answer, Box
from pgcli.results.drawings.overlay import draw_overlay
from pgcli.stores.files import parse_path
from pgcli.wording import count, shown

MAX_ROWS = 20
SIDE = 240  # pixels of a thumbnail's longer side
MASKS_SIDE = 480  # with masks, whose edges a small thumbnail would hide
MAX_CHARACTERS = 400  # of an answer
MAX_SCORES = 10  # texts, labels or choices of an answer
NOTHING_FOUND = "(nothing found)"


def page(answers: Sequence[Answer], images: Mapping[int, Any]) -> str:
    """HTML of the first answers; `images` are the images in memory by the index of their answers.

    All text of answers and names is escaped.
    """
    shown = answers[:MAX_ROWS]
    rows = "".join(
        table_row(answer, images.get(answer.index, parse_path(answer.image))) for answer in shown
    )
    remaining = len(answers) - len(shown)
    more = f"<p>and {remaining:,} more</p>" if remaining else ""
    return f"<p>{count(len(answers), 'answer')}</p><table><tbody>{rows}</tbody></table>{more}"


def table_row(answer: Answer, source: Any) -> str:
    """A row of the table: the image, the prompt and the answer."""
    lines = [f"<b>{html_text(answer.id)}</b>"]
    if answer.prompt:
        lines.append(f"<i>{html_text(answer.prompt)}</i>")
    if answer.error is not None:
        lines.append(f"<b>{html_text(answer.error)}</b> {html_text(answer.error_message or '')}")
    else:
        lines += map(html_text, answer_lines(answer))
    style = "text-align:left;vertical-align:top"
    image = thumbnail(answer, source)
    return f'<tr><td>{image}</td><td style="{style}">{"<br>".join(lines)}</td></tr>'


def answer_lines(answer: Answer) -> Iterator[str]:
    """The lines about what was answered."""
    if answer.answer and not (answer.boxes and has_locations(answer.answer)):
        yield answer.answer
    if answer.boxes:
        yield ", ".join(map(box_text, answer.boxes))
    elif answer.task in BOX_TASKS:
        yield NOTHING_FOUND
    scores = [
        *((choice.text, choice.probability) for choice in answer.choices or ()),
        *((label.label, label.probability) for label in answer.labels or ()),
    ]
    for score in answer.scores or ():
        scores.append((score.text, score.probability if score.score is None else score.score))
    for text, value in scores[:MAX_SCORES]:
        yield f"{value:.3f} {text}"
    if len(scores) > MAX_SCORES:
        yield f"and {len(scores) - MAX_SCORES:,} more"
    if answer.embedding is not None:
        yield f"embedding of {count(len(answer.embedding), 'number')}"


def box_text(box: Box) -> str:
    """A box's label, and its confidence if it is known."""
    return box.label + ("" if box.confidence is None else f" {box.confidence:.2g}")


def html_text(foreign: str) -> str:
    """Foreign text, escaped for HTML and truncated."""
    return escape(printable(shown(foreign, MAX_CHARACTERS)))


def thumbnail(answer: Answer, source: Any) -> str:
    """A small copy of the image with its boxes; empty if the source is no image of this size."""
    if answer.error is not None or not answer.width or not answer.height:
        return ""
    has_masks = any(mask is not None and mask.rle is not None for mask in answer.masks or ())
    try:
        data = source if isinstance(source, str) else file_bytes(source)
        if has_masks:
            image = load_image(data, ImageLimits())
            size = image.size
        else:
            size, image = load_thumbnail(data, SIDE, ImageLimits())
    except (ImageError, ValueError, OSError):  # also a stream that was closed
        return ""
    if size != (answer.width, answer.height):  # the file was replaced
        return ""
    file = io.BytesIO()
    if has_masks:
        image = draw_overlay(image, answer.boxes, answer.masks)
        image.thumbnail((MASKS_SIDE, MASKS_SIDE))
    else:
        x, y = image.width / answer.width, image.height / answer.height
        boxes = [
            box.moved((box.xmin * x, box.ymin * y, box.xmax * x, box.ymax * y))
            for box in answer.boxes
        ]
        image = draw_overlay(image, boxes)
    image.save(file, "PNG")
    encoded = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img src="data:image/png;base64,{encoded}" alt="{html_text(answer.id)}">'
