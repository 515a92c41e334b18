"""A row as lines of text for a person."""

from __future__ import annotations

import re
from array import array

from pgcli.records import BOX_TASKS, Answer, Box, TextScore
from pgcli.text import printable

NOTHING = "(nothing found)"
BOX_TOKENS = re.compile(r"<(loc|seg)\d+>")
SHOWN_VALUES = 4  # of an embedding's values


def text_lines(answer: Answer, *, with_prompt: bool = False) -> str:
    """`id: answer` and a line for each box, choice, score or label, or `id: error code: message`.

    With `with_prompt`, `id, prompt: answer`. Answers are shown without box tokens; an answer
    without a complete box says so; an embedding shows its first values.
    """
    name = printable(answer.id)
    if with_prompt and answer.prompt:
        name += f", {printable(answer.prompt)}"
    if answer.error is not None:
        return f"{name}: error {answer.error}: {printable(answer.error_message or '')}\n"
    is_empty = answer.task in BOX_TASKS and not answer.boxes
    text = printable(answer.answer or "")
    if answer.boxes:
        text = " ".join(BOX_TOKENS.sub(" ", text).split())
    if is_empty:
        text = NOTHING
    if answer.embedding is not None:
        text = embedding_text(answer.text, answer.embedding)
    first = f"{name}: {text}".rstrip()
    details = (
        *map(box_line, answer.boxes),
        *(f"  {c.probability:6.1%} {printable(c.text)}" for c in answer.choices or ()),
        *map(score_line, answer.scores or ()),
        *(f"  {c.probability:6.1%} {printable(c.label)}" for c in answer.labels or ()),
    )
    return "".join(f"{line}\n" for line in (first, *details))


def box_line(box: Box) -> str:
    """A box in whole pixels, top left to bottom right, and its confidence with two digits."""
    corners = f"{box.xmin:.0f},{box.ymin:.0f} - {box.xmax:.0f},{box.ymax:.0f}"
    sure = "" if box.confidence is None else f" ({box.confidence:.2g})"
    return f"  {printable(box.label)} {corners}{sure}"


def score_line(score: TextScore) -> str:
    """A text with its probability in percent, then cosine and score in brackets."""
    own = "" if score.score is None else f", score {score.score:.3g}"
    text = printable(score.text)
    return f"  {score.probability:6.1%} {text} (cosine {score.cosine:.3f}{own})"


def embedding_text(text: str | None, values: array[float]) -> str:
    """The text of the embedding, if it is one of a text, and the first values."""
    shown = ", ".join(f"{value:.3f}" for value in values[:SHOWN_VALUES])
    more = f", ... ({len(values):,} values)" if len(values) > SHOWN_VALUES else ""
    return f"{'' if text is None else f'{printable(text)}: '}{shown}{more}"
