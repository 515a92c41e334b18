"""A run's input, opened again as the run itself read it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.pipeline import first_rows, sample_evenly
from pgcli.records import Item
from pgcli.remote import UrlReader, make_url_reader
from pgcli.sources import ReadOptions, open_sources
from pgcli.state.progress import is_count
from pgcli.state.run_record import RunRecord
from pgcli.state.state_folder import RUN, file_list, state_folder
from pgcli.tasks import Question, columns, with_prompts

Check = Callable[[Any], bool]


def reopen_items(
    output: Path, record: RunRecord, url_reader: UrlReader | None
) -> Iterator[Item] | None:
    """The items that a run's rows are of, read from its input again; None where that was a pipe.

    Addresses are read by way of `url_reader`. Raises UsageError where the run was begun in another
    folder, or the record is not as a run writes it, and what opening sources raises.
    """
    check_record(output, record)
    told, settings = record.metadata, record.settings
    if "-" in told["sources"]:
        return None
    question = Question(
        task=settings["command"],
        templates=None if settings["prompts"] is None else tuple(settings["prompts"]),
        max_new_tokens=settings["max_new_tokens"],
        choices=tuple(settings["choices"]),
        choices_column=settings["choices_column"],
    )
    image, id_, prompt = settings["columns"]
    reading = ReadOptions(
        image_column=image,
        id_column=id_,
        prompt_column=prompt,
        keep=tuple(settings["keep"]),
        fields=columns(question),
        requires_prompts=question.templates is None,
        refuses_prompts=question.refuses_prompts,
        choices_column=question.choices_column,
        allow_outside_root=told["allow_outside_root"],
        url_reader=url_reader,
    )
    if os.path.realpath(told["folder"]) != os.path.realpath("."):
        raise UsageError(
            f"the run was begun in {told['folder']}, from which its input is named",
            hint=f"cd {shlex.quote(told['folder'])} first",
        )
    source = open_sources(told["sources"], reading)
    source.pin_files(partial(file_list, state_folder(output), record.files), is_written=False)
    found: Iterable[Item] = source
    if (sample := settings.get("sample")) is not None and source.total is not None:
        found = sample_evenly(found, source.total, sample)
    items: Any = with_prompts(found, question)
    if told["limit"] is not None:
        items = first_rows(items, told["limit"])
    again: Iterator[Item] = iter(items)
    return again


def check_record(output: Path, record: RunRecord) -> None:
    """Raise UsageError where what opens the input again is not as a run writes it."""
    parts = {"settings": record.settings, "told": record.metadata}
    for part, checks in RECORD_CHECKS.items():
        held = parts[part]
        for name, is_sound in checks.items():
            if not is_sound(held.get(name)):
                raise UsageError(
                    f"{state_folder(output) / RUN} is not a record of a run: {name!r} in {part!r} "
                    "is not as a run writes it",
                    hint="--overwrite makes the output anew, and a record beside it",
                )


def is_text(value: object) -> bool:
    """Whether it can be a name."""
    return isinstance(value, str) and "\0" not in value


def are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def or_none(is_sound: Check) -> Check:
    return lambda value: value is None or is_sound(value)


#: What opens a run's input again, and how a record has it.
RECORD_CHECKS: Mapping[str, Mapping[str, Check]] = {
    "settings": {
        "command": is_text,
        "prompts": or_none(are_texts),
        "max_new_tokens": is_count,
        "choices": are_texts,
        "choices_column": or_none(is_text),
        "columns": lambda value: are_texts(value) and len(value) == 3,
        "keep": are_texts,
        "sample": or_none(lambda value: is_count(value) and value > 0),
    },
    "told": {
        "sources": are_texts,
        "folder": is_text,
        "limit": or_none(is_count),
        "allow_outside_root": lambda value: isinstance(value, bool),
    },
}


def url_reader_of(record: RunRecord) -> UrlReader | None:
    """The way to addresses that a run had, if it had one."""
    told = record.metadata
    return make_url_reader(
        allow_urls=bool(told.get("allow_urls")),
        allow_private_hosts=bool(told.get("allow_private_hosts")),
    )


def metadata_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a run's record tells besides its settings."""
    told = record.get("told")
    return told if isinstance(told, Mapping) else {}
