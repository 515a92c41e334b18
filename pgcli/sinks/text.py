"""A row as lines of text for a person."""

from __future__ import annotations

from pgcli.printable import printable
from pgcli.records import BOX_TASKS, Answer, Box, Choice

NOTHING = "(nothing found)"


def text_lines(answer: Answer) -> str:
    """`id: answer` and a line for each box or choice, or `id: error code: message`.

    In place of the location tokens of an answer without a whole box, it says that.
    """
    name = printable(answer.id)
    if answer.error is not None:
        return f"{name}: error {answer.error}: {printable(answer.error_message or '')}\n"
    is_empty = answer.task in BOX_TASKS and not answer.boxes
    first = f"{name}: {NOTHING if is_empty else printable(answer.answer or '')}".rstrip()
    details = (*map(box_line, answer.boxes), *map(choice_line, answer.choices or ()))
    return "".join(f"{line}\n" for line in (first, *details))


def box_line(box: Box) -> str:
    """A box in whole pixels, top left to bottom right, and its confidence to two digits."""
    corners = f"{box.xmin:.0f},{box.ymin:.0f} - {box.xmax:.0f},{box.ymax:.0f}"
    sure = "" if box.confidence is None else f" ({box.confidence:.2g})"
    return f"  {printable(box.label)} {corners}{sure}"


def choice_line(choice: Choice) -> str:
    """A choice and its probability in percent."""
    return f"  {choice.probability:6.1%} {printable(choice.text)}"
