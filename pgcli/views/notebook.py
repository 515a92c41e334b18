"""Answers as a notebook shows them: the first few, each with its picture, boxes drawn."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape

from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.printable import printable
from pgcli.records import Answer
from pgcli.views.overlay import painted

SHOWN = 20
SIDE = 240  # pixels of a thumbnail's longer side
LONGEST = 400  # characters of an answer


def page(answers: Sequence[Answer], path_of: Callable[[str], str]) -> str:
    """HTML of the first answers, with pictures that are files where `path_of` has their names lead.

    Whatever an answer or a name holds, it is text.
    """
    rows = "".join(line(answer, path_of(answer.image)) for answer in answers[:SHOWN])
    rest = len(answers) - SHOWN
    more = f"<p>and {rest:,} more</p>" if rest > 0 else ""
    return f"<p>{len(answers):,} answers</p><table><tbody>{rows}</tbody></table>{more}"


def line(answer: Answer, path: str) -> str:
    """A row of the table: the picture, and what it was asked and answered."""
    if answer.error is not None:
        told = f"<b>{text(answer.error)}</b> {text(answer.error_message or '')}"
    else:
        told = text(answer.answer or "")
    found = ", ".join(f"{box.label} {box.score:.2g}" for box in answer.boxes)
    parts = [f"<b>{text(answer.id)}</b>", f"<i>{text(answer.prompt)}</i>", told, text(found)]
    cell = "<br>".join(part for part in parts if part)
    style = "text-align:left;vertical-align:top"
    return f'<tr><td>{thumbnail(answer, path)}</td><td style="{style}">{cell}</td></tr>'


def text(foreign: str) -> str:
    """Text that is nothing else in HTML, of bounded length."""
    return escape(printable(foreign[:LONGEST]) + "…" * (len(foreign) > LONGEST))


def thumbnail(answer: Answer, path: str) -> str:
    """The picture, small and with its boxes; nothing where it is no picture of this size here."""
    if answer.error is not None or not answer.width or not answer.height:
        return ""
    try:
        picture = load_image(path, ImageLimits())
    except ImageError:
        return ""
    if picture.size != (answer.width, answer.height):  # another one by now
        return ""
    picture.thumbnail((SIDE, SIDE))
    x, y = picture.width / answer.width, picture.height / answer.height
    boxes = [
        replace(box, xmin=box.xmin * x, ymin=box.ymin * y, xmax=box.xmax * x, ymax=box.ymax * y)
        for box in answer.boxes
    ]
    file = io.BytesIO()
    painted(picture, boxes).save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" alt="{text(answer.id)}">'
