"""What applies where: options that are without effect in a command, and those that exclude others.

An option that was typed and does not apply is ignored with one line, or refused where rows or files
would not be what was asked for. One that the environment or the configuration file sets is ignored
in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pgcli.checkpoints.find import DEMO, DEMO_TOWERS, builtin_models
from pgcli.declare import build, options_of
from pgcli.errors import PgcliError, UsageError
from pgcli.inputs.options import SOURCE, ReadOptions
from pgcli.output import FOLDER, named_format
from pgcli.pipeline.request.options import RECORDS, InputOptions
from pgcli.pipeline.request.questions import COMMANDS, WITHOUT_ANSWERS
from pgcli.stores.urls import is_in_object_store

#: All options of a command by name, with `task`, its name, and `sources`.
Options = Any


@dataclass(frozen=True, slots=True)
class Rule:
    """Where each of the `options` is given, it needs what `applies` says of all options.

    With `excludes`, the rule is about each pair of one of the options and one of these. Of options
    to which a rule does not apply the first that was not typed is left out. If all were typed, they
    are refused with the message and its hint; without a hint the first is ignored with the message;
    without a message, what is made of the options refuses them. In both texts, `{flag}` is the
    first option, `{other}` the second.
    """

    options: str
    applies: Callable[[Options], bool]
    message: str = ""
    hint: str = ""
    excludes: str = ""


def never(o: Options) -> bool:
    """The options exclude each other."""
    return False


def is_text(o: Options) -> bool:
    """Whether a PaliGemma answers."""
    return o.task not in WITHOUT_ANSWERS


def is_generated(o: Options) -> bool:
    """Whether answers are not picked among choices."""
    return not o.choice and o.choices_column is None


def is_folder(o: Options) -> bool:
    """Whether the output is a folder of Parquet files."""
    return named_format(o.output) == FOLDER


def has_images(o: Options) -> bool:
    """Whether items are images, not texts."""
    return o.task != "embed" or not (o.text or o.texts_file)


def may_have_columns(o: Options) -> bool:
    """Whether no source names or has an image without a manifest, as far as they can be listed."""
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
        return True  # it is refused when it is read


def is_on_hub(model: str | None) -> bool:
    """Whether a model is named and neither built in nor a folder, which have no revisions."""
    return model is not None and not (
        model in builtin_models() or Path(model).expanduser().is_dir()
    )


LEAVE_OUT = "leave {flag} out"
LEAVE_ONE_OUT = "leave one of them out: a run without {other} has {flag}"
EXCLUDES = "{flag} does not go with {other}"
VIEW_LATER = "once the rows are there, pgcli view rows/ draws them and writes pages"
NO_COLUMN = ", and the rows of {task} have none"

#: In this order: what is left out by a rule is so for those after it.
RULES = (
    # what is asked
    Rule("choices_column", never, excludes="choice"),
    Rule("text_column", never, excludes="text"),
    Rule("text texts_file", lambda o: o.task != "embed" or not o.sources),
    Rule("keep", lambda o: set(o.keep) == {SOURCE} or may_have_columns(o)),
    Rule("choices_column", may_have_columns),
    Rule("raw_text", lambda o: o.task != "embed" or not has_images(o)),
    Rule(
        "include exclude",
        has_images,
        "{flag} chooses images by their names, and these are texts",
        LEAVE_OUT,
    ),
    # the model
    Rule("adapter quantize", is_text, "{flag} is for models that answer with text", LEAVE_OUT),
    Rule(
        "revision",
        lambda o: is_on_hub(o.model),
        "{model} has no revisions to choose from",
        "{flag} goes with a name on the Hub",
    ),
    Rule(
        "engines",
        lambda o: o.engines == 1 or o.device in ("auto", "cpu", "cuda"),
        "{flag} {engines} needs a device for each, and {other} {device} is one",
        "leave out {other}",
        excludes="device",
    ),
    # shards and clusters
    Rule(
        "ray shard",
        is_folder,
        "{flag} needs a folder of Parquet files as output",
        "name it with a slash at its end: -o rows/",
    ),
    Rule("ray_gpus ray_cpus", lambda o: o.ray is not None, "{flag} applies to --ray"),
    Rule("shard", never, EXCLUDES, LEAVE_ONE_OUT, excludes="ray"),
    Rule(
        "overwrite",
        never,
        "{flag} does not go with {other}: each shard would remove the rows of the others",
        "name another -o, or remove the output and its folder .pgcli first",
        excludes="shard",
    ),
    Rule("overwrite", never, EXCLUDES, "leave out {flag}", excludes="retry_errors retry_changed"),
    Rule(
        "retry_errors retry_changed",
        lambda o: o.output != "-" and (named_format(o.output) is not None or o.format == "jsonl"),
        "{flag} goes through all rows of an output that can be resumed",
        "name the output that has them: -o rows.jsonl",
    ),
    Rule(
        "retry_errors retry_changed",
        never,
        EXCLUDES,
        "leave out --ray and --shard",
        excludes="ray shard",
    ),
    Rule("draw view", never, EXCLUDES, VIEW_LATER, excludes="ray shard"),
    Rule("sidecar", never, EXCLUDES, LEAVE_ONE_OUT, excludes="ray shard"),
    Rule(
        "retry_errors retry_changed draw view sidecar",
        lambda o: not is_in_object_store(o.output),
        "{flag} does not go with an output in an object store",
        "name a folder of this machine with -o",
    ),
    # the output
    Rule("format", lambda o: named_format(o.output) in (None, f".{o.format}")),
    Rule("rows_per_file", is_folder, "{flag} applies to a folder of Parquet files"),
    Rule("draw", is_text, "{flag} draws boxes" + NO_COLUMN, LEAVE_OUT),
    Rule(
        "sidecar",
        lambda o: is_text(o) or o.task == "classify",
        "{flag} writes answers" + NO_COLUMN,
        LEAVE_OUT,
    ),
    Rule("view", has_images, "{flag} shows images" + NO_COLUMN, LEAVE_OUT),
    Rule(
        "sidecar",
        lambda o: o.prompts <= 1,
        "{flag} writes one answer for each image, and there are {prompts} prompts",
        "ask one prompt in each run, with different endings: {flag} .one, .two",
    ),
    Rule(
        "prepend append",
        lambda o: o.sidecar is not None,
        "{flag} applies to the texts of --sidecar",
    ),
    # answers
    Rule("alternatives token_logprobs", is_generated),
    Rule("temperature max_new_tokens", is_generated, "{flag} does not apply to choices"),
    Rule(
        "top_p top_k",
        lambda o: o.temperature > 0 or o.alternatives > 0,
        "{flag} applies where a --temperature is given",
    ),
)
DEFAULTS: Mapping[str, Any] = {
    option.name: option.default
    for record in (*COMMANDS.values(), *RECORDS)
    for option in options_of(record)
}


def applying(
    command: str, sources: Sequence[str], values: Mapping[str, Any], typed: Collection[str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of options without those that do not apply, and the lines about those typed.

    Raises UsageError for options that were typed and contradict what else was.
    """
    kept, lines = {**values}, []
    for rule in RULES:
        excluded = [rule.excludes.split()] if rule.excludes else []
        for names in product(rule.options.split(), *excluded):
            if not all(name in kept and kept[name] != DEFAULTS[name] for name in names):
                continue
            untyped = [name for name in names if name not in typed]
            if not (rule.message or untyped):
                continue  # what is made of the options refuses them
            options = all_options(command, sources, kept)
            if rule.applies(options):
                continue
            if not untyped:
                flags = [f"--{name.replace('_', '-')}" for name in names]
                words = vars(options) | {"flag": flags[0], "other": flags[-1]}
                message = rule.message.format_map(words)
                if rule.hint:
                    raise UsageError(message, hint=rule.hint.format_map(words))
                lines.append(f"ignored: {message}")
            del kept[(untyped or names)[0]]
    return kept, tuple(lines)


def all_options(command: str, sources: Sequence[str], values: Mapping[str, Any]) -> SimpleNamespace:
    """The options of a command, and what rules say of it beside them."""
    o = SimpleNamespace(**{**DEFAULTS, **values, "task": command, "sources": sources})
    o.prompts = len(o.object) if o.each else len(o.prompt)
    if o.model is None:
        o.model = DEMO if is_text(o) else DEMO_TOWERS
    return o
