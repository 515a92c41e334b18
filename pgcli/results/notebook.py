"""Renders answers as an HTML table for notebooks, with thumbnails and boxes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from html import escape

from pgcli.images import ImageError, ImageLimits
from pgcli.images.decode import load_thumbnail
from pgcli.printable import printable
from pgcli.records import Answer
from pgcli.results.drawings.overlay import draw_overlay

MAX_ROWS = 20
SIDE = 240  # pixels of a thumbnail's longer side
MAX_CHARACTERS = 400  # of an answer


def page(answers: Sequence[Answer], path_of: Callable[[str], str]) -> str:
    """HTML of the first answers; `path_of` returns the file of an image's name.

    All text of answers and names is escaped.
    """
    rows = "".join(table_row(answer, path_of(answer.image)) for answer in answers[:MAX_ROWS])
    remaining = len(answers) - MAX_ROWS
    more = f"<p>and {remaining:,} more</p>" if remaining > 0 else ""
    return f"<p>{len(answers):,} answers</p><table><tbody>{rows}</tbody></table>{more}"


def table_row(answer: Answer, path: str) -> str:
    """A row of the table: the image, the prompt and the answer."""
    if answer.error is not None:
        content = f"<b>{html_text(answer.error)}</b> {html_text(answer.error_message or '')}"
    else:
        content = html_text(answer.answer or "")
    boxes = ", ".join(
        box.label + ("" if box.confidence is None else f" {box.confidence:.2g}")
        for box in answer.boxes
    )
    parts = [
        f"<b>{html_text(answer.id)}</b>",
        f"<i>{html_text(answer.prompt)}</i>",
        content,
        html_text(boxes),
    ]
    cell = "<br>".join(part for part in parts if part)
    style = "text-align:left;vertical-align:top"
    return f'<tr><td>{thumbnail(answer, path)}</td><td style="{style}">{cell}</td></tr>'


def html_text(foreign: str) -> str:
    """Foreign text, escaped for HTML and truncated."""
    return escape(printable(foreign[:MAX_CHARACTERS]) + "…" * (len(foreign) > MAX_CHARACTERS))


def thumbnail(answer: Answer, path: str) -> str:
    """A small copy of the image with its boxes; empty if no image of this size is at the path."""
    if answer.error is not None or not answer.width or not answer.height:
        return ""
    try:
        size, image = load_thumbnail(path, SIDE, ImageLimits())
    except ImageError:
        return ""
    if size != (answer.width, answer.height):  # the file was replaced
        return ""
    x, y = image.width / answer.width, image.height / answer.height
    boxes = [
        box.moved((box.xmin * x, box.ymin * y, box.xmax * x, box.ymax * y)) for box in answer.boxes
    ]
    file = io.BytesIO()
    draw_overlay(image, boxes).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" alt="{html_text(answer.id)}">'
