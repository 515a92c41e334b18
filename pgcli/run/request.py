"""The request of a run, and how it is made of options; those that do not apply are dropped."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.find import DEMO, DEMO_TOWERS, builtin_models
from pgcli.declare import build, options_of
from pgcli.errors import PgcliError, UsageError
from pgcli.inputs.options import ReadOptions
from pgcli.output import FOLDER, named_format
from pgcli.run.options import (
    SHARED_OPTIONS,
    AnsweringOptions,
    InputOptions,
    ModelOptions,
    OutputOptions,
    RunningOptions,
)
from pgcli.run.questions import (
    COMMAND_OPTIONS,
    LINES_OF,
    WITHOUT_ANSWERS,
    CommandOptions,
    lines_of_file,
    schema_of_file,
)
from pgcli.stores.urls import is_in_object_store
from pgcli.tasks import AnyQuestion, Question

if TYPE_CHECKING:
    from pgcli.checkpoints.families import ModelKind


def current_folder() -> str:
    """The folder in which the program was started. Raises UsageError if it no longer exists."""
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd makes the same call
    except OSError as problem:
        raise UsageError(
            f"the current folder cannot be read: {problem.strerror}", hint="cd into one that exists"
        ) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A question, the sources of its items, and the options that both were made from.

    `ignored` has a line for each typed option without effect. Relative names are relative to
    `folder`. If a run from another folder is resumed, sources are relative to `sources_folder`, and
    rows name the model by `model_label`. `instructed` if the question is to a model that follows
    instructions.
    """

    question: AnyQuestion
    sources: tuple[str, ...]
    command: CommandOptions
    model: ModelOptions
    input: InputOptions
    answering: AnsweringOptions
    output: OutputOptions
    running: RunningOptions
    ignored: tuple[str, ...] = ()
    folder: str = field(default_factory=current_folder)
    sources_folder: str = ""
    model_label: str = ""
    instructed: bool = False

    @property
    def built_in_model(self) -> str:
        """The built-in model that answers without `--model`."""
        return DEMO if isinstance(self.question, Question) else DEMO_TOWERS

    @property
    def model_name(self) -> str:
        """The name of the run's model."""
        return self.built_in_model if self.model.model is None else self.model.model

    @property
    def mask_decoder(self) -> str | None:
        """The file with weights that turn mask codes into pixels, if one was named."""
        return getattr(self.command, "mask_decoder", None)

    @property
    def input_folder(self) -> str:
        """The folder for relative names of sources."""
        return self.sources_folder or self.folder


def records_of(command: str) -> tuple[type, ...]:
    """The option records of a command, its own first."""
    is_answering = command not in WITHOUT_ANSWERS
    shared = (record for record in SHARED_OPTIONS if is_answering or record is not AnsweringOptions)
    return (COMMAND_OPTIONS[command], *shared)


def make_request(
    command: str,
    sources: Iterable[str],
    values: Mapping[str, Any],
    *,
    typed: Collection[str] = (),
) -> RunRequest:
    """The request of a command with parsed values of options.

    Options that do not apply are dropped, with a line for each typed one. Raises UsageError for
    values that make no question or contradict each other.
    """
    sources, values = tuple(sources), with_files(values)
    texts = command == "embed" and not values.keys().isdisjoint(("text", "texts_file"))
    if "model" not in typed and not is_able(command, values.get("model"), texts=texts):
        for name in {"model", "revision"}.difference(typed):  # the variable is for other commands
            values.pop(name, None)
    options = GivenOptions(values, typed)
    drop_by_question(options, command, sources)
    drop_by_output(options)
    return build_request(command, sources, options.values, ignored=tuple(options.lines))


def with_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with the lines of text files added to the options that they extend.

    The schema of answers is the content of its file. Raises UsageError.
    """
    values = {**values}
    for name, option in LINES_OF.items():
        if lines := lines_of_file(values.pop(name, None), noun=option):
            values[option] = (*values.get(option, ()), *lines)
    if values.get("schema") is not None:
        values["schema"] = schema_of_file(values["schema"])
    return values


def build_request(
    command: str,
    sources: tuple[str, ...],
    values: Mapping[str, Any],
    *,
    instructed: bool = False,
    **more: Any,
) -> RunRequest:
    """The request with these values of options, which all apply; `more` are its other fields.

    It reads no file, so that the request of an earlier run stays the same. Raises UsageError for
    values that make no question.
    """
    answering = build(AnsweringOptions, values)
    own: CommandOptions = build(COMMAND_OPTIONS[command], values)
    return RunRequest(
        question=question_of(own, answering, sources, instructed=instructed),
        instructed=instructed,
        sources=sources,
        command=own,
        model=build(ModelOptions, values),
        input=build(InputOptions, values),
        answering=answering,
        output=build(OutputOptions, values),
        running=build(RunningOptions, values),
        **more,
    )


def question_of(
    command: CommandOptions,
    answering: AnsweringOptions,
    sources: Sequence[str],
    *,
    instructed: bool = False,
) -> AnyQuestion:
    """The question of a command; see `CommandOptions.question`. Raises UsageError."""
    question = command.question(answering, sources, instructed=instructed)
    if not isinstance(question, Question):
        return question
    return replace(question, system=answering.system, region=answering.region)


def local_kind(model: str | None) -> ModelKind | None:
    """The kind of a model; None if it is unknown without a download, or without a valid model."""
    from pgcli.checkpoints.config import read_description
    from pgcli.checkpoints.find import find_local  # not at the top: --help has to be fast

    try:
        checkpoint = None if model is None else find_local(model)
        return None if checkpoint is None else read_description(checkpoint.folder).kind
    except PgcliError:  # the checks of the run raise it
        return None


def is_able(command: str, model: str | None, *, texts: bool = False) -> bool:
    """Whether a model can answer a command; True if that is unknown without a download.

    With `texts` the command embeds texts in place of images.
    """
    from pgcli.towers.abilities import ABILITIES  # not at the top: --help has to be fast

    kind = local_kind(model)
    if kind is None:
        return True
    return command in ABILITIES[kind] and (kind == "two_towers" or not texts)


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


def drop_by_question(o: GivenOptions, command: str, sources: Sequence[str]) -> None:
    """Drop the options that do not apply to the question, its items or its model."""
    if (
        o.has("system")
        and "system" not in o.typed
        and local_kind(o["model"] or DEMO) not in (None, "instruct")
    ):
        o.ignore("system", "needs a model that follows instructions")
    is_towers = command in ("score", "classify")
    if command == "embed" and (o.has("pool") or o.has("adapter")):
        is_towers = local_kind(o["model"] or DEMO_TOWERS) not in (None, "multi_vector")
    if is_towers:
        o.ignore("pool", "merges the vectors of a page, and only ColPali makes several")
        o.refuse("adapter", "is for ColPali and for models that answer with text")
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
    o.drop("schema", "choice")
    o.drop("schema", "choices_column")
    o.drop("choices_column", "choice")
    o.drop("text_column", "text")
    if command in WITHOUT_ANSWERS:
        o.refuse("quantize draw", "is for models that answer with text")
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


ARRAY = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT")
#: The variables of a task's index, from 0, and of the number of tasks. The first pair that is set
#: counts. torchrun and srun come before the schedulers of containers: the processes that they start
#: in a container all inherit its variables.
SCHEDULERS = (
    ARRAY,
    ("RANK", "WORLD_SIZE"),  # torchrun
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script lacks the second one
    ("AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE"),
    ("BATCH_TASK_INDEX", "BATCH_TASK_COUNT"),  # Google Batch
    ("CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),  # Kubernetes sets no count: the manifest does
)


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number`, `number + count`, `number + 2 * count` and so on, from 0."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def has(self, part: int) -> bool:
        """Whether the part of this number is in the shard."""
        return part % self.count == self.number


def parse_shard(text: str, environment: Mapping[str, str]) -> Shard:
    """The shard of `I/N`, or for `auto` of a scheduler's variables.

    Raises UsageError, also if the variables are missing or name a shard that does not exist.
    """
    if text == "auto":
        return shard_of_environment(environment)
    number, _, count = text.partition("/")
    if not (_is_number(number) and _is_number(count) and int(number) < int(count)):
        raise UsageError(
            f"<--shard=> must be auto or I/N, not {text!r}",
            hint="I counts from 0, and N is the number of shards: <--shard 0/4> to <--shard 3/4>",
        )
    return Shard(int(number), int(count))


def shard_of_environment(environment: Mapping[str, str]) -> Shard:
    """The shard of this task, by the variables of the first scheduler in `SCHEDULERS`."""
    names = environment.keys()
    complete = [scheduler for scheduler in SCHEDULERS if names >= set(scheduler)]
    if not complete:
        for index, count in SCHEDULERS:
            if index in names:
                raise UsageError(
                    f"{index} is {environment[index]!r}, but {count} is not set",
                    hint=f"set {count} to the number of tasks, or write <--shard I/N>",
                )
        raise UsageError(
            "<--shard auto> finds no variables of a scheduler, such as SLURM_ARRAY_TASK_ID or RANK",
            hint="write <--shard I/N>, I from 0",
        )
    return _shard_of(*complete[0], environment)


def _shard_of(index: str, count: str, environment: Mapping[str, str]) -> Shard:
    """The shard that the variables of one scheduler name."""

    def value(name: str, least: int = 0) -> int:
        text = environment[name]
        if not _is_number(text) or int(text) < least:
            message = f"{name} must be a whole number of {least} or more, not {text!r}"
            raise UsageError(message, hint=hint)
        return int(text)

    hint, first = "write <--shard I/N>, I from 0", 0
    if (index, count) == ARRAY:
        hint = (
            "submit the whole array with a step of 1, such as --array=0-7, or write <--shard I/N>"
        )
        if (step := environment.get("SLURM_ARRAY_TASK_STEP", "1")) != "1":
            raise UsageError(f"SLURM_ARRAY_TASK_STEP must be 1, not {step!r}", hint=hint)
        first = value("SLURM_ARRAY_TASK_MIN") if "SLURM_ARRAY_TASK_MIN" in environment else 0
    number, total = value(index), value(count, least=1)
    if not first <= number < first + total:
        bounds = f"from {first} to {first + total - 1}, as {count} is {total}"
        raise UsageError(f"{index} must be {bounds}, not {number}", hint=hint)
    return Shard(number - first, total)


def _is_number(text: str) -> bool:
    """Whether the text is a whole number of a size that shards have."""
    return re.fullmatch("[0-9]{1,9}", text) is not None
