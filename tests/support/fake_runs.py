"""Runs with a function instead of a model, which an exception kills after some rows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from pgcli.pipeline import run
from pgcli.sinks import open_resumable
from pgcli.sinks.resumable import ResumableSink
from pgcli.state.run_state import RunState

from pgcli.output.reader import indexed_rows
from pgcli.records import COLUMNS, Answer, DecodedImage, Fault, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.run.request.shard import Shard

SCHEMA = RowSchema(timing=False)
refuse = partial(error_answer, task="ask", model="fake")


class Killed(BaseException):
    """Raised instead of a kill: nothing more is flushed or closed."""


def item(index: int, prompts: tuple[str, ...] = ("what?",)) -> Item:
    return Item(index, f"{index}.png", f"{index}.png", prompts=prompts)


def many(count: int) -> list[Item]:
    """Items with one to three prompts."""
    return [item(k, ("a", "b", "c")[: 1 + k % 3]) for k in range(count)]


def answer(image: DecodedImage, prompt: str) -> Answer:
    known: dict[str, Any] = dict.fromkeys(COLUMNS)
    known |= {"index": image.item.index, "id": image.item.id, "image": image.item.image}
    text = f"«{image.item.id}»\u2028 {prompt}" * (1 + image.item.index % 5)
    return Answer(**known | {"prompt": prompt, "answer": text, "boxes": ()})


def decode(items: Any, broken: Any = ()) -> Iterator[DecodedImage]:
    for each in items:
        fault = Fault("truncated", "It ends early.") if each.index in broken else None
        yield DecodedImage(each, 8, 8, None, 1.0, fault)


#: The number of answers that `ask_at_will` holds back, plus the prompts of the next image.
HELD = 4 + 3


def ask_at_will(
    stream: Any, rng: random.Random, on_row: Callable[[int], None]
) -> Iterator[tuple[int, Answer]]:
    """Answers in a random order with a few images held, as an engine does."""
    held: list[tuple[int, Answer]] = []
    for first, image in stream:
        for number, prompt in enumerate(image.item.prompts):
            on_row(first + number)
            held.append((first + number, answer(image, prompt)))
        while len(held) > 4 or (held and rng.random() < 0.4):
            yield held.pop(rng.randrange(len(held)))
    rng.shuffle(held)
    yield from held


def format_of(output: Path) -> Any:
    """The format that the output's name chooses; a folder if it has no ending."""
    return {".jsonl": "jsonl", ".parquet": "parquet"}.get(output.suffix, "folder")


def run_to(
    output: Path,
    items: Sequence[Item],
    *,
    rows: int | None = None,
    seed: int = 0,
    broken: Any = (),
    retry: bool = False,
    settings: Any = (("seed", 0),),
    shard: Shard | None = None,
    on_row: Callable[[int], None] = lambda row_index: None,
    saved: Callable[[int], None] = lambda rows: None,
) -> list[int]:
    """Run to the output, killed after `rows`; return the processed row indices.

    `on_row` is called with each row index, `saved` with the number of rows after each one.
    """
    indices: list[int] = []
    output.parent.mkdir(exist_ok=True)
    state = RunState(output, keep_old=output.suffix == ".parquet", part=shard.part if shard else "")
    with state:
        state.check_settings(dict(settings))
        record = open_resumable(
            state, SCHEMA, format_of(output), settings={}, shard=shard, retry=retry
        )
        save = saving(record, rows, saved)

        def note(row_index: int) -> None:
            indices.append(row_index)
            on_row(row_index)

        asking = partial(ask_at_will, rng=random.Random(seed), on_row=note)
        try:
            run(items, partial(decode, broken=broken), asking, save, refuse, resume_log=record)
        except Killed:
            return indices
        with record:
            pass
    return indices


def saving(
    record: ResumableSink, rows: int | None, saved: Callable[[int], None]
) -> Callable[[Answer], None]:
    """Save rows, and raise Killed instead of saving another one after `rows`."""
    left = rows

    def save(answer: Answer) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left = None if left is None else left - 1
        record.save(answer)
        saved(record.rows)

    return save


def saved_keys(output: Path) -> list[tuple[int, str]]:
    return [(row["index"], row["prompt"]) for row in rows_in(output)]


def rows_in(output: Path) -> list[Any]:
    """The saved rows of an output of any format, up to the first torn one."""
    return list(takewhile(lambda row: row is not None, (row for _, row in indexed_rows(output))))


def keys_of(items: Sequence[Item]) -> list[tuple[int, str]]:
    return [(one.index, prompt) for one in items for prompt in one.prompts]


def rows_as_text(output: Path) -> list[str]:
    """The saved rows as text that is comparable between formats."""
    return [json.dumps(row, sort_keys=True) for row in rows_in(output)]


def set_chunk_rows(rows: int, patch: pytest.MonkeyPatch) -> None:
    """Make chunks so small that a test fills some."""
    patch.setattr("pgcli.state.shard.CHUNK_ROWS", rows)
