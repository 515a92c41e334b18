"""The rules for options that have no effect in a command, or that exclude each other.

A typed option that does not apply is ignored with one line, or raises UsageError if rows or files
would differ from the request. Options from the environment or the configuration file are ignored
silently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pgcli.checkpoints.find import DEMO, DEMO_TOWERS, builtin_models
from pgcli.declare import build, options_of
from pgcli.errors import PgcliError, UsageError
from pgcli.inputs.options import ReadOptions
from pgcli.output import FOLDER, named_format
from pgcli.pipeline.request.options import SHARED_OPTIONS, InputOptions
from pgcli.pipeline.request.questions import COMMAND_OPTIONS, WITHOUT_ANSWERS
from pgcli.stores.urls import is_in_object_store

#: All options of a command by name, with `task`, its name, and `sources`.
Options = Any


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: an option, or a pair, applies if `is_met` is true for all options of the command.

    If typed options do not apply, a UsageError has the message and the hint; without a
    hint the first option is ignored with the message; without a message the question raises the
    error. In both texts, `{flag}` is the first option and `{other}` the second.
    """

    is_met: Callable[[Options], bool]
    message: str = ""
    hint: str = ""


def generates_text(o: Options) -> bool:
    """Whether a PaliGemma answers."""
    return o.task not in WITHOUT_ANSWERS


def writes_folder(o: Options) -> bool:
    """Whether the output is a folder of Parquet files."""
    return named_format(o.output) == FOLDER


def has_images(o: Options) -> bool:
    """Whether items are images, not texts."""
    return o.task != "embed" or not (o.text or o.texts_file)


def may_have_columns(o: Options) -> bool:
    """Whether all images may have columns: no source is or contains a plain image."""
    from pgcli.inputs.file_table import IMAGE  # these import pyarrow
    from pgcli.inputs.listing import SourceFiles

    options = ReadOptions(url_reader=build(InputOptions, vars(o)).url_reader)
    named = (source for source in o.sources if source != "-")
    sources = (SourceFiles(0, source, options, is_alone=False) for source in named)
    try:
        return has_images(o) and all(
            record.kind != IMAGE for source in sources for record in source.records()
        )
    except PgcliError:
        return True  # reading it will raise the error


def is_on_hub(model: str | None) -> bool:
    """Whether a model is on the Hub: named, not built in, and no folder."""
    return model is not None and not (
        model in builtin_models() or Path(model).expanduser().is_dir()
    )


OMIT = "omit {flag}"

#: The rules of single options, by the names in their `needs`.
NEEDS: Mapping[str, Rule] = {
    "no-images": Rule(lambda o: not o.sources),
    "images": Rule(has_images, "{flag} applies to images, not to texts", OMIT),
    "texts": Rule(lambda o: not has_images(o)),
    "columns": Rule(may_have_columns),
    "one-prompt": Rule(
        lambda o: o.prompts <= 1,
        "{flag} writes one answer for each image, and there are {prompts} prompts",
        "ask one prompt per run, with different extensions: {flag} .one, .two",
    ),
    "text-model": Rule(generates_text, "{flag} is for models that answer with text", OMIT),
    "hub": Rule(
        lambda o: is_on_hub(o.model),
        "{flag} does not apply to {model}",
        "omit {flag}, or name a model on the Hub",
    ),
    "folder": Rule(
        writes_folder,
        "{flag} needs a folder of Parquet files as output",
        "end its name in a slash: <-o rows/>",
    ),
    "files": Rule(writes_folder, "{flag} applies to a folder of Parquet files"),
    "local": Rule(
        lambda o: not is_in_object_store(o.output),
        "{flag} does not work with an output in an object store",
        "name a folder on this machine with <-o>",
    ),
    "resumable": Rule(
        lambda o: o.output != "-" and (named_format(o.output) is not None or o.format == "jsonl"),
        "{flag} needs a resumable output",
        "name the output of the run: <-o rows.jsonl>",
    ),
    "format": Rule(lambda o: named_format(o.output) in (None, f".{o.format}")),
    "answers": Rule(
        lambda o: generates_text(o) or o.task == "classify",
        "{flag} writes answers, and the rows of {task} have none",
        OMIT,
    ),
    "generation": Rule(
        lambda o: not o.choice and o.choices_column is None, "{flag} does not apply to choices"
    ),
    "sampling": Rule(lambda o: o.temperature > 0, "{flag} needs a <--temperature=> above 0"),
}

#: Two options that exclude each other.
either = partial(Rule, lambda o: False, "{flag} does not work with {other}")
WHEN_SAVED = either("once all rows are saved, run the command without {other}")
#: The rules for pairs: each of the first options with each of the second.
PAIRS: Sequence[tuple[str, str, Rule]] = (
    ("choices_column", "choice", Rule(lambda o: False)),
    ("text_column", "text", Rule(lambda o: False)),
    (
        "engines",
        "device",
        Rule(
            lambda o: o.engines == 1 or o.device in ("auto", "cpu", "cuda"),
            "{flag} {engines} needs a device for each, and {other} {device} is one",
            "omit {other}",
        ),
    ),
    ("shard", "ray", either("omit one of them")),
    ("overwrite", "shard", either("remove the output and its folder .pgcli first")),
    ("overwrite", "retry_errors retry_changed", either("omit {flag}")),
    ("draw sidecar", "ray shard", WHEN_SAVED),
    ("retry_errors retry_changed", "shard", WHEN_SAVED),
)
DEFAULTS: Mapping[str, Any] = {
    option.name: option.default
    for record in (*COMMAND_OPTIONS.values(), *SHARED_OPTIONS)
    for option in options_of(record)
}


def flag_of(name: str) -> str:
    """An option as error texts write it: see `errors.OPTION`."""
    return f"--{name.replace('_', '-')}{'=' * (DEFAULTS[name] is not False)}"


def applying(
    command: str, sources: Sequence[str], values: Mapping[str, Any], typed: Collection[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of the options that apply, and a line for each typed option that is ignored.

    Raises UsageError for typed options that contradict others.
    """
    kept, lines = {**values}, []
    for names, rule in rules(command):  # later rules do not see the options that earlier ones drop
        if not all(name in kept and kept[name] != DEFAULTS[name] for name in names):
            continue
        untyped = [name for name in names if name not in typed]
        if not (rule.message or untyped):
            continue  # the question refuses them
        options = all_options(command, sources, kept)
        if rule.is_met(options):
            continue
        if not untyped:
            flags = [f"<{flag_of(name)}>" for name in names]
            words = vars(options) | {"flag": flags[0], "other": flags[-1]}
            message = rule.message.format_map(words)
            if rule.hint:
                raise UsageError(message, hint=rule.hint.format_map(words))
            lines.append(f"ignored: {message}")
        del kept[(untyped or names)[0]]
    return kept, tuple(lines)


def rules(command: str) -> Iterator[tuple[tuple[str, ...], Rule]]:
    """Each rule of a command, with its option or pair of options."""
    for record in (COMMAND_OPTIONS[command], *SHARED_OPTIONS):
        for option in options_of(record):
            yield from (((option.name,), NEEDS[name]) for name in option.needs.split())
    for options, others, rule in PAIRS:
        yield from ((names, rule) for names in product(options.split(), others.split()))


def all_options(command: str, sources: Sequence[str], values: Mapping[str, Any]) -> SimpleNamespace:
    """The options of a command and the facts that rules need."""
    o = SimpleNamespace(**{**DEFAULTS, **values, "task": command, "sources": sources})
    o.prompts = len(o.object) if o.each else len(o.prompt)
    if o.model is None:
        o.model = DEMO if generates_text(o) else DEMO_TOWERS
    return o
