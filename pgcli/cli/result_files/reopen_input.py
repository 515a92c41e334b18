"""Reopens the input of a run with the settings of that run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.cli.job.answering_task import DEFAULT
from pgcli.cli.job.input import open_items
from pgcli.cli.job.plan import check_current_folder
from pgcli.cli.job.run_settings import default_settings
from pgcli.errors import UsageError
from pgcli.pipeline import first_rows, sample_evenly
from pgcli.records import Item
from pgcli.regions import parse_region
from pgcli.remote import UrlReader, make_url_reader
from pgcli.rows import COLUMN_OF_TASK
from pgcli.sources.name_filter import NameFilter
from pgcli.sources.read_options import ReadOptions
from pgcli.state.atomic_file import read_json
from pgcli.state.progress import is_count
from pgcli.state.run_record import RunRecord
from pgcli.state.state_folder import RUN, file_list, state_folder
from pgcli.tasks import AnyQuestion, EmbeddingQuestion, Question, with_prompts

Check = Callable[[Any], bool]


def reopen_items(
    output: Path, record: RunRecord, url_reader: UrlReader | None
) -> Iterator[Item] | None:
    """The items of a run, read from its input again; None if the input was a pipe.

    Addresses are read by `url_reader`. Raises UsageError if the run was started in another folder
    or its record is damaged, and what opening sources raises.
    """
    settings = {**default_settings(record.metadata, DEFAULT.settings()), **record.settings}
    metadata = {**DEFAULT_METADATA, **record.metadata}
    check_record(output, {"settings": settings, "told": metadata})
    if "-" in metadata["sources"]:
        return None
    question = make_question(settings)
    image, id_, prompt = settings["columns"]
    read_options = ReadOptions(
        image_column=image,
        id_column=id_,
        prompt_column=prompt,
        keep=tuple(settings["keep"]),
        allow_outside_root=metadata["allow_outside_root"],
        url_reader=url_reader,
        names=NameFilter(tuple(settings["include"]), tuple(settings["exclude"])),
    )
    if os.path.realpath(metadata["folder"]) != os.path.realpath(check_current_folder()):
        raise UsageError(
            f"the run was started in {metadata['folder']}, and its paths start there",
            hint=f"cd {shlex.quote(metadata['folder'])} first",
        )
    source = open_items(metadata["sources"], question, read_options)
    source.pin_files(partial(file_list, state_folder(output), record.files), is_written=False)
    chosen: Iterable[Item] = source
    sample = settings.get("sample")
    if sample is not None and (total := source.population(sample)) is not None:
        chosen = sample_evenly(chosen, total, sample)
    items: Any = with_prompts(chosen, question)
    if metadata["limit"] is not None:
        items = first_rows(items, metadata["limit"])
    reopened: Iterator[Item] = iter(items)
    return reopened


def question_of(record: RunRecord) -> AnyQuestion:
    """The question of a run. Raises KeyError and TypeError for a damaged record."""
    defaults = default_settings(record.metadata, DEFAULT.settings())
    return make_question({**defaults, **record.settings})


def make_question(settings: Mapping[str, Any]) -> AnyQuestion:
    """The question that these settings are of, as far as the input depends on it."""
    if settings["command"] in COLUMN_OF_TASK:
        return EmbeddingQuestion(
            task=settings["command"],
            texts=tuple(settings.get("texts") or ()),
            texts_file=(settings.get("texts_file") or {}).get("name"),
            text_column=settings.get("text_column"),
        )
    return Question(
        task=settings["command"],
        templates=None if settings["prompts"] is None else tuple(settings["prompts"]),
        max_new_tokens=settings["max_new_tokens"],
        choices=tuple(settings["choices"]),
        choices_column=settings["choices_column"],
        region=None if settings["region"] is None else parse_region(settings["region"]),
    )


def check_record(output: Path, parts: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise UsageError if the settings that reopen the input are not as a run writes them."""
    for part, checks in RECORD_CHECKS.items():
        held = parts[part]
        for name, is_sound in checks.items():
            if not is_sound(held.get(name)):
                raise UsageError(
                    f"{state_folder(output) / RUN} is not the record of a run: {name!r} in "
                    f"{part!r} is not as a run writes it",
                    hint="--overwrite writes the output and its record again",
                )


def is_text(value: object) -> bool:
    """Whether the value can be a name."""
    return isinstance(value, str) and "\0" not in value


def are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_valid_region(value: object) -> bool:
    """Whether the value is four numbers that are a region."""
    try:
        return isinstance(value, list) and bool(parse_region(value))
    except ValueError:
        return False


def or_none(is_sound: Check) -> Check:
    return lambda value: value is None or is_sound(value)


#: The metadata that the record of an older run may lack.
DEFAULT_METADATA: Mapping[str, Any] = {"limit": None, "allow_outside_root": False}
#: The entries of a record that reopen the input, with the check of each.
RECORD_CHECKS: Mapping[str, Mapping[str, Check]] = {
    "settings": {
        "command": is_text,
        "prompts": or_none(are_texts),
        "max_new_tokens": is_count,
        "choices": are_texts,
        "choices_column": or_none(is_text),
        "texts": or_none(are_texts),
        "text_column": or_none(is_text),
        "texts_file": or_none(lambda value: isinstance(value, dict) and is_text(value.get("name"))),
        "columns": lambda value: are_texts(value) and len(value) == 3,
        "keep": are_texts,
        "include": are_texts,
        "exclude": are_texts,
        "region": or_none(is_valid_region),
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
    """The reader of addresses with the permissions of the run; None if it had none."""
    metadata = record.metadata
    return make_url_reader(
        allow_urls=bool(metadata.get("allow_urls")),
        allow_private_hosts=bool(metadata.get("allow_private_hosts")),
    )


def stored_metadata(output: Path) -> Mapping[str, Any]:
    """The part of a run's record that is not part of its settings; empty without a record."""
    metadata = (read_json(state_folder(output) / RUN) or {}).get("told")
    return metadata if isinstance(metadata, Mapping) else {}
