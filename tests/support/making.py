"""Outputs made by runs that ask a function, and are killed by an exception or outright."""

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
from pgcli.records import COLUMNS, Answer, DecodedImage, Fault, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.sinks import open_resumable
from pgcli.sinks.reader import indexed_rows
from pgcli.sinks.resumable import ResumableSink
from pgcli.state.run_state import RunState
from pgcli.state.shard import Shard

LAYOUT = RowSchema(timing=False)
refuse = partial(error_answer, task="ask", model="fake")


class Killed(BaseException):
    """The end of a process, as far as what it did not do any more goes."""


def item(index: int, prompts: tuple[str, ...] = ("what?",)) -> Item:
    return Item(index, f"{index}.png", f"{index}.png", prompts=prompts)


def many(count: int) -> list[Item]:
    """Items with one to three prompts."""
    return [item(k, ("a", "b", "c")[: 1 + k % 3]) for k in range(count)]


def answer(picture: DecodedImage, prompt: str) -> Answer:
    known: dict[str, Any] = dict.fromkeys(COLUMNS)
    known |= {"index": picture.item.index, "id": picture.item.id, "image": picture.item.image}
    text = f"«{picture.item.id}»\u2028 {prompt}" * (1 + picture.item.index % 5)
    return Answer(**known | {"prompt": prompt, "answer": text, "boxes": ()})


def look(items: Any, broken: Any = ()) -> Iterator[DecodedImage]:
    for each in items:
        fault = Fault("truncated", "It ends early.") if each.index in broken else None
        yield DecodedImage(each, 8, 8, None, 1.0, fault)


#: As many answers as `ask_at_will` holds back, and as many prompts as come with the next picture.
HELD = 4 + 3


def ask_at_will(
    stream: Any, rng: random.Random, asked: Callable[[int], None]
) -> Iterator[tuple[int, Answer]]:
    """Answers in an order of its own, a few pictures held at a time, as an engine has it."""
    held: list[tuple[int, Answer]] = []
    for first, picture in stream:
        for number, prompt in enumerate(picture.item.prompts):
            asked(first + number)
            held.append((first + number, answer(picture, prompt)))
        while len(held) > 4 or (held and rng.random() < 0.4):
            yield held.pop(rng.randrange(len(held)))
    rng.shuffle(held)
    yield from held


def written_as(output: Path) -> Any:
    """As an output's name says: a folder where it has no ending."""
    return {".jsonl": "jsonl", ".parquet": "parquet"}.get(output.suffix, "folder")


def made(
    output: Path,
    items: Sequence[Item],
    *,
    rows: int | None = None,
    seed: int = 0,
    broken: Any = (),
    retry: bool = False,
    settings: Any = (("seed", 0),),
    shard: Shard | None = None,
    asked: Callable[[int], None] = lambda place: None,
    saved: Callable[[int], None] = lambda rows: None,
) -> list[int]:
    """Have a run make the output, killed after so many rows; the places that were asked about.

    `asked` is told of each place, `saved` how many rows are saved when one more is.
    """
    places: list[int] = []
    output.parent.mkdir(exist_ok=True)
    state = RunState(output, keep_old=output.suffix == ".parquet", part=shard.part if shard else "")
    with state:
        state.check_settings(dict(settings))
        record = open_resumable(
            state, LAYOUT, written_as(output), settings={}, shard=shard, retry=retry
        )
        save = saving(record, rows, saved)

        def noted(place: int) -> None:
            places.append(place)
            asked(place)

        asking = partial(ask_at_will, rng=random.Random(seed), asked=noted)
        try:
            run(items, partial(look, broken=broken), asking, save, refuse, resume_log=record)
        except Killed:
            return places  # without a word: nothing is synced, nothing closed
        with record:
            pass
    return places


def saving(
    record: ResumableSink, rows: int | None, saved: Callable[[int], None]
) -> Callable[[Answer], None]:
    """What saves rows in the record, and is killed instead of saving one after so many."""
    left = rows

    def save(answer: Answer) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left = None if left is None else left - 1
        record.save(answer)
        saved(record.rows)

    return save


def places(output: Path) -> list[tuple[int, str]]:
    return [(row["index"], row["prompt"]) for row in rows_in(output)]


def rows_in(output: Path) -> list[Any]:
    """The rows that are saved, whatever the output is; up to the first that is torn."""
    return list(takewhile(lambda row: row is not None, (row for _, row in indexed_rows(output))))


def key_of(items: Sequence[Item]) -> list[tuple[int, str]]:
    return [(one.index, prompt) for one in items for prompt in one.prompts]


def row_texts(output: Path) -> list[str]:
    """The rows that are saved as text, to be compared whatever the output is."""
    return [json.dumps(row, sort_keys=True) for row in rows_in(output)]


def chunks_of(rows: int, patch: pytest.MonkeyPatch) -> None:
    """Have chunks of so few rows that a test fills some."""
    patch.setattr("pgcli.state.shard.CHUNK_ROWS", rows)
