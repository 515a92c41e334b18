"""Drop the options that have no effect in a command, or that exclude each other.

A typed option that does not apply is ignored with one line, or raises UsageError if rows or files
would differ from the request. Options from the environment or the configuration file are ignored
silently.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from pgcli.checkpoints.find import DEMO, DEMO_TOWERS, builtin_models
from pgcli.declare import build, options_of
from pgcli.errors import PgcliError, UsageError
from pgcli.inputs.options import ReadOptions
from pgcli.output import FOLDER, named_format
from pgcli.run.request.options import SHARED_OPTIONS, InputOptions
from pgcli.run.request.questions import COMMAND_OPTIONS, WITHOUT_ANSWERS
from pgcli.stores.urls import is_in_object_store

DEFAULTS: Mapping[str, Any] = {
    option.name: option.default
    for record in (*COMMAND_OPTIONS.values(), *SHARED_OPTIONS)
    for option in options_of(record)
}


def may_have_columns(sources: Sequence[str], values: Mapping[str, Any]) -> bool:
    """Whether all images may have columns: no source is or contains a plain image."""
    from pgcli.inputs.file_table import IMAGE  # these import pyarrow
    from pgcli.inputs.listing import SourceFiles

    options = ReadOptions(url_reader=build(InputOptions, values).url_reader)
    named = (source for source in sources if source != "-")
    files = (SourceFiles(0, source, options, is_alone=False) for source in named)
    try:
        return all(record.kind != IMAGE for source in files for record in source.records())
    except PgcliError:
        return True  # reading it will raise the error


def is_on_hub(model: str | None) -> bool:
    """Whether a model is on the Hub: named, not built in, and no folder."""
    return model is not None and not (
        model in builtin_models() or Path(model).expanduser().is_dir()
    )


class GivenOptions:
    """The options of a command that still apply, and a line for each ignored one."""

    def __init__(self, values: Mapping[str, Any], typed: Collection[str]):
        self.values, self.typed = {**values}, typed
        self.lines: list[str] = []

    def __getitem__(self, name: str) -> Any:
        return self.values.get(name, DEFAULTS[name])

    def has(self, name: str) -> bool:
        """Whether an option differs from its default."""
        return bool(self[name] != DEFAULTS[name])

    def drop(self, *names: str) -> None:
        """Drop the first option that is not typed, if all are given."""
        untyped = [name for name in names if name not in self.typed]
        if untyped and all(map(self.has, names)):
            del self.values[untyped[0]]

    def ignore(self, names: str, why: str) -> None:
        """Drop each of these options, with one line if it is typed."""
        for name in filter(self.has, names.split()):
            if name in self.typed:
                self.lines.append(f"ignored: {flag_of(name)} {why}")
            del self.values[name]

    def refuse(self, names: str, why: str, hint: str = "") -> None:
        """Drop each of these options. Raises UsageError for a typed one."""
        for name in names.split():
            self.drop(name)
            if self.has(name):
                raise UsageError(f"{flag_of(name)} {why}", hint=hint or f"omit {flag_of(name)}")

    def exclude(self, names: str, others: str, hint: str = "") -> None:
        """Drop one option of each pair. Raises UsageError if both are typed."""
        for pair in product(names.split(), others.split()):
            self.drop(*pair)
            if all(map(self.has, pair)):
                message = " does not work with ".join(map(flag_of, pair))
                raise UsageError(message, hint=hint or f"omit {flag_of(pair[0])}")


def flag_of(name: str) -> str:
    """An option as error texts write it: see `errors.OPTION`."""
    return f"<--{name.replace('_', '-')}{'=' * (DEFAULTS[name] is not False)}>"


def applying(
    command: str, sources: Sequence[str], values: Mapping[str, Any], typed: Collection[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of the options that apply, and a line for each typed option that is ignored.

    Raises UsageError for typed options that contradict others.
    """
    options = GivenOptions(values, typed)
    drop_by_question(options, command, sources)
    drop_by_output(options)
    return options.values, tuple(options.lines)


def drop_by_question(o: GivenOptions, command: str, sources: Sequence[str]) -> None:
    """Drop the options that do not apply to the question, its items or its model."""
    if command == "embed" and sources:
        o.drop("text")
        o.drop("texts_file")
    if command == "embed" and not (o["text"] or o["texts_file"]):
        o.drop("raw_text")
    elif command == "embed":
        o.refuse("include exclude", "applies to images, not to texts")
        o.drop("keep")
    for name in ("keep", "choices_column"):
        if o.has(name) and name not in o.typed and not may_have_columns(sources, o.values):
            o.drop(name)
    o.drop("choices_column", "choice")
    o.drop("text_column", "text")
    if command in WITHOUT_ANSWERS:
        o.refuse("adapter quantize draw", "is for models that answer with text")
    if command in ("embed", "score"):
        o.refuse("sidecar", f"writes answers, and the rows of {command} have none")
    model = o["model"] or (DEMO_TOWERS if command in WITHOUT_ANSWERS else DEMO)
    if o.has("revision") and not is_on_hub(model):
        hint = "omit <--revision=>, or name a model on the Hub"
        o.refuse("revision", f"does not apply to {model}", hint)
    if o["engines"] not in (None, 1) and o["device"] not in ("auto", "cpu", "cuda"):
        o.exclude("engines", "device", "omit <--device=>: each engine needs a device of its own")
    if o.has("choice") or o.has("choices_column"):
        o.ignore("max_new_tokens temperature", "does not apply to choices")
    if o["temperature"] <= 0:
        o.ignore("top_p top_k", "needs a <--temperature=> above 0")
    if (prompts := len(o["object"] if o["each"] else o["prompt"])) > 1:
        o.refuse(
            "sidecar",
            f"writes one answer for each image, and there are {prompts} prompts",
            "ask one prompt per run, with different extensions: <--sidecar=> .one, .two",
        )


def drop_by_output(o: GivenOptions) -> None:
    """Drop the options that do not apply to the output, or to how the run writes it."""
    output, format = o["output"], named_format(o["output"])
    if format not in (None, f".{o['format']}"):
        o.drop("format")
    if format != FOLDER:
        hint = "end its name in a slash: <-o rows/>"
        o.refuse("ray shard", "needs a folder of Parquet files as output", hint)
        o.ignore("rows_per_file", "applies to a folder of Parquet files")
    if output == "-" or (format is None and o["format"] != "jsonl"):
        hint = "name the output of the run: <-o rows.jsonl>"
        o.refuse("retry_errors retry_changed", "needs a resumable output", hint)
    if is_in_object_store(output):
        why = "does not work with an output in an object store"
        hint = "name a folder on this machine with <-o>"
        o.refuse("draw sidecar retry_errors retry_changed", why, hint)
    o.exclude("shard", "ray")
    o.exclude("overwrite", "shard", "remove the output and its folder .pgcli first")
    o.exclude("overwrite", "retry_errors retry_changed")
    hint = "once all rows are saved, run the command without <--shard=> or <--ray=>"
    o.exclude("draw sidecar", "ray shard", hint)
    o.exclude("retry_errors retry_changed", "shard", hint)
