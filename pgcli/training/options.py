"""The options of training and their defaults."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pgcli.declare import REQUIRED, opt, same
from pgcli.errors import UsageError
from pgcli.images import ImageLimits
from pgcli.inputs import ReadOptions
from pgcli.inputs.options import PROMPT_COLUMNS, NameFilter
from pgcli.inputs.paths import display_name
from pgcli.labels.columns import ANSWER_COLUMNS
from pgcli.run import options as values
from pgcli.run.options import ErrorBudget, InputOptions, ModelOptions, RunningOptions, models
from pgcli.run.request import is_on_hub
from pgcli.stores import Reader, make_reader
from pgcli.stores.urls import url_scheme
from pgcli.text import one_of


class Recipe(NamedTuple):
    """Defaults that depend on the task; `docs/reference/training.md` cites their sources."""

    batch_size: int
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]


CONTRASTIVE_BETAS, BETAS = (0.9, 0.95), (0.9, 0.999)
#: By task, and by method or initial weights.
RECIPES: Mapping[tuple[str, str], Recipe] = MappingProxyType(
    {
        ("answer", "lora"): Recipe(32, 1e-4, 0.0, BETAS),
        ("answer", "full"): Recipe(32, 1e-5, 0.0, BETAS),
        ("contrastive", "new"): Recipe(256, 1e-3, 1e-4, CONTRASTIVE_BETAS),
        ("contrastive", "checkpoint"): Recipe(256, 1e-5, 1e-4, CONTRASTIVE_BETAS),
        ("contrastive", "probe"): Recipe(256, 1e-3, 1e-4, CONTRASTIVE_BETAS),
        ("classify", "new"): Recipe(64, 1e-3, 0.05, BETAS),
        ("classify", "checkpoint"): Recipe(64, 3e-5, 0.05, BETAS),
        ("classify", "probe"): Recipe(64, 1e-3, 0.0, BETAS),
    }
)
PARTS = ("vision", "projector", "decoder")  # of PaliGemma, that can be frozen
LORA, FULL = "--method lora", "--method full"
CONTRASTIVE, CLASSIFY = "--task contrastive", "--task classify"
#: The tasks, or PaliGemma's methods, that an option applies to; other options apply to all.
SCOPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("init", "probe"), (CONTRASTIVE, CLASSIFY)),
        **dict.fromkeys(("loss", "text_column"), (CONTRASTIVE,)),
        "label_column": (CLASSIFY,),
        **dict.fromkeys(("prompt", "prompt_column", "answer_column"), (LORA, FULL)),
        **dict.fromkeys(("method", "dropout"), (LORA, FULL)),
        **dict.fromkeys(("rank", "alpha", "targets", "quantize", "merge", "adapter"), (LORA,)),
        "freeze": (FULL,),
    }
)

#: Options without an effect on other tasks, where they are ignored. Others would change what is
#: learned, and are refused there.
IGNORED = frozenset("loss method dropout rank alpha targets quantize merge".split())

_learning = partial(opt, panel="Learning", own=True)
_method = partial(opt, panel="PaliGemma", own=True)
_evaluation = partial(opt, panel="Evaluation", own=True)
_model = partial(opt, panel="Which model", own=True)
_input = partial(opt, panel="Which images", own=True)


def steps_or_epochs(value: object) -> int | float:
    """`N` as an int (steps) and `Xe` as a float (epochs); a float is epochs. Raises ValueError."""
    text = values.plain_text(value)
    if isinstance(value, float) or text.endswith("e"):
        epochs = float(text.removesuffix("e"))
        if 0 < epochs < math.inf:
            return epochs
    elif text.isdecimal() and int(text):
        return int(text)
    raise ValueError(f"must be a number of steps, or of epochs such as 0.5e, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a command line, its `sources`, and a line for each ignored option."""

    sources: Sequence[str] = ()
    ignored: Sequence[str] = ()

    task: Literal["contrastive", "classify"] | None = _learning(
        "What to train: contrastive trains two towers on images and texts, classify a "
        "classifier on labels (folders of images, or a column). By default PaliGemma learns"
        " to answer prompts."
    )
    loss: Literal["sigmoid", "softmax"] | None = _learning(
        "Loss of --task contrastive.",
        default_text="the model's: sigmoid for SigLIP, softmax for CLIP",
    )
    probe: bool = _learning("Train only the head; the towers stay frozen.", default=False)
    epochs: int | None = _learning("Number of passes over the rows.", min=1, default_text="10")
    steps: int | None = _learning("Number of updates of the weights, instead of --epochs.", min=1)
    batch_size: int | None = _learning(
        "Rows per update.", min=1, default_text="32, contrastive 256, classify 64"
    )
    micro_batch: int | None = _learning(
        "Rows per forward pass, which does not change the update; auto takes the fastest "
        "number that fits, with --task the whole batch. Halved when memory runs out.",
        min=1,
        auto=True,
    )
    learning_rate: float | None = _learning(
        "Peak learning rate, after warm-up and before cosine decay to 0.",
        min=0.0,
        above=True,
        default_text="lora 1e-4, full 1e-5; contrastive 1e-5, classify 3e-5; with --init or "
        "--probe 1e-3",
    )
    warmup: float = _learning(
        "Warm-up, as a number of steps or a share of the run.",
        default=0.05,
        metavar="N|P%",
        parse=values.count_or_share,
        default_text="5%",
    )
    weight_decay: float | None = _learning(
        "Weight decay of the kernels of linear layers and convolutions.",
        min=0.0,
        default_text="0; contrastive 1e-4; classify 0.05, with --probe 0",
    )
    max_grad_norm: float = _learning(
        "Clip gradients to this norm; 0 disables clipping.", default=1.0, min=0.0
    )
    seed: int = _learning(
        "Random seed; on one CPU, the same seed gives the same weights.", default=0, min=0
    )
    method: Literal["lora", "full"] = _method(
        "What to train of PaliGemma: lora adds low-rank adapters to frozen weights, full "
        "trains all weights in float32.",
        default="lora",
    )
    rank: int | None = _method("Rank of the adapters.", min=1, max=4096, default_text="8")
    alpha: float | None = _method(
        "Scale of the adapters, which are multiplied by alpha / rank.",
        min=0.0,
        above=True,
        default_text="32",
    )
    targets: Literal["attention", "all", "attention,vision", "all,vision"] | None = _method(
        "Layers that get adapters: attention is the decoder's attention, all also its MLPs, "
        "vision also the vision tower.",
        default_text="attention",
    )
    dropout: float = _method(
        "Dropout on the inputs of adapters; with --method full, in the decoder's layers.",
        default=0.0,
        min=0.0,
        max=0.9,
    )
    quantize: Literal["none", "int8"] = _method(
        "Quantize the decoder's frozen layers; int8 takes half the memory of bfloat16.",
        default="none",
    )
    freeze: tuple[str, ...] = _method(
        "Parts to freeze with --method full: vision, projector, decoder.",
        metavar="PART,...",
        repeat=True,
        commas=True,
        choices=PARTS,
        default_text="none",
    )
    merge: bool = _method(
        "Also write the model with the adapter merged, to DIR/merged.", default=False
    )
    eval: str | None = _evaluation(
        "Rows to evaluate on: a manifest, folder or archive.", metavar="SOURCE"
    )
    eval_fraction: float = _evaluation(
        "Hold out this share of the images for evaluation.", default=0.0, min=0.0, max=0.9
    )
    eval_every: int | float | None = _evaluation(
        "Steps between evaluations; or epochs, with an e: 1e, 0.5e.",
        metavar="N|Ne",
        parse=steps_or_epochs,
        default_text="20 evaluations per run",
    )
    patience: int = _evaluation(
        "Stop after N evaluations without improvement; 0 never stops.", default=0, min=0
    )
    model: str | None = _model(
        "Weights to start from: a folder, a name on the Hub, demo, or with --task demo-towers.",
        metavar="NAME",
        choices=models,
    )
    adapter: str | None = _model(
        "Continue from this adapter of the model, with its rank, alpha and targets.",
        metavar="DIR",
    )
    init: Literal["tiny", "small", "base"] | None = _model(
        "Start from random weights of this size: tiny trains on a CPU, small is ViT-S/16, "
        "base is ViT-B/16."
    )
    revision: str | None = same(ModelOptions, "revision")
    device: str = same(ModelOptions, "device")
    dtype: values.Dtype = same(ModelOptions, "dtype")
    image_column: str = same(InputOptions, "image_column")
    id_column: str = same(InputOptions, "id_column")
    prompt: str | None = _input(
        "Prompt of all rows if the rows have none, such as: caption en. {column} is "
        "replaced by the value in the row.",
        metavar="TEXT",
    )
    prompt_column: str | None = _input(
        "Manifest column with the prompts.", metavar="NAME", default_text=one_of(PROMPT_COLUMNS)
    )
    answer_column: str | None = _input(
        "Manifest column with the answers.", metavar="NAME", default_text=one_of(ANSWER_COLUMNS)
    )
    text_column: str = opt(
        "Manifest column with the texts.", panel="Which images", default="text", metavar="NAME"
    )
    label_column: str = opt(
        "Manifest column with the labels.", panel="Which images", default="label", metavar="NAME"
    )
    include: tuple[str, ...] = same(InputOptions, "include")
    exclude: tuple[str, ...] = same(InputOptions, "exclude")
    workers: int | None = same(InputOptions, "workers")
    max_pixels: int | None = _input(
        "Largest image to train on, in pixels; larger ones are skipped.",
        min=1,
        default_text="89,478,485",
    )
    fast_decode: bool = same(InputOptions, "fast_decode")
    allow_outside_root: bool = same(InputOptions, "allow_outside_root")
    allow_urls: bool = same(InputOptions, "allow_urls")
    allow_private_hosts: bool = same(InputOptions, "allow_private_hosts")
    output: str = opt(
        "Folder for the trained model, its metrics and curves.",
        panel="Where to",
        default=REQUIRED,
        own=True,
        metavar="DIR",
        short=("-o",),
    )
    on_error: Literal["record", "stop"] = same(
        RunningOptions,
        "on_error",
        "What to do about an unusable row: record skips it, stop ends the run.",
    )
    max_errors: ErrorBudget | None = same(RunningOptions, "max_errors")
    overwrite: bool = opt(
        "Start over and replace an existing run.", panel="How to run", own=True, default=False
    )
    dry_run: bool = same(RunningOptions, "dry_run")
    quiet: bool = same(RunningOptions, "quiet")

    @classmethod
    def of(
        cls, sources: Sequence[str], values: Mapping[str, Any], typed: Collection[str]
    ) -> TrainOptions:
        """The options with these values, without those that do not apply, each with a line if it
        was `typed`. Those that would change what is learned are kept, and `check_options` refuses
        them.
        """
        default = {field.name: field.default for field in fields(cls)}
        known_values = {name: value for name, value in values.items() if name in default}
        options = cls(sources=sources, **known_values)
        reasons = inapplicable(options)
        dropped = [name for name in reasons if name in IGNORED or name not in typed]
        unused: dict[str, Any] = {name: default[name] for name in dropped}
        lines = tuple(f"ignored: {reasons[name]}" for name in dropped if name in typed)
        if not is_on_hub(options.model) and "revision" not in typed:
            unused["revision"] = None
        return replace(options, ignored=lines, **unused)

    @property
    def scope(self) -> str:
        """The task, or PaliGemma's method, as an option: some options apply to some scopes only."""
        return f"--task {self.task}" if self.task else f"--method {self.method}"

    @property
    def task_name(self) -> str:
        """The task by name: answer, contrastive or classify."""
        return self.task or "answer"

    @property
    def recipe(self) -> Recipe:
        """The defaults for the task, overridden by the options that were set."""
        origin = "probe" if self.probe else "checkpoint" if self.init is None else "new"
        default = RECIPES[self.task_name, origin if self.task else self.method]
        values = {name: getattr(self, name, None) for name in Recipe._fields}
        return default._replace(**{n: value for n, value in values.items() if value is not None})

    @property
    def column(self) -> str | None:
        """The column of texts or labels; None for answers."""
        columns = {"contrastive": self.text_column, "classify": self.label_column}
        return columns.get(self.task_name)

    @property
    def image_limits(self) -> ImageLimits:
        """The limits on image size."""
        return ImageLimits() if self.max_pixels is None else ImageLimits(self.max_pixels)

    def make_reader(self) -> Reader | None:
        """A reader of URLs; None if they are not allowed."""
        return make_reader(allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts)

    @property
    def read_options(self) -> ReadOptions:
        """The options for reading the sources."""
        return ReadOptions(
            image_column=self.image_column,
            id_column=self.id_column,
            names=NameFilter(self.include, self.exclude),
            allow_outside_root=self.allow_outside_root,
            url_reader=self.make_reader(),
        )

    @property
    def error_budget(self) -> ErrorBudget:
        """The number of failed rows that ends the run."""
        return RunningOptions(on_error=self.on_error, max_errors=self.max_errors).error_budget

    @property
    def folder(self) -> Path:
        """The local folder for the results. Raises UsageError for other outputs."""
        if self.output == "-" or url_scheme(self.output):
            raise UsageError(
                f"train writes to a local folder, not to {display_name(self.output)}",
                hint="name a folder, such as <-o runs/model>, and copy it afterwards",
            )
        return Path(self.output).expanduser()


#: The option records of the command.
TRAIN_RECORDS = (TrainOptions,)


def inapplicable(options: TrainOptions) -> dict[str, str]:
    """Why each option that is set does not apply to the task, by the name of the option."""
    reasons = {}
    for field in fields(options):
        scopes = SCOPES.get(field.name, (options.scope,))
        if options.scope in scopes or getattr(options, field.name) == field.default:
            continue
        tasks = [f"<{scope}>" for scope in scopes if scope.startswith("--task")]
        names = " and ".join(tasks if options.task else [f"<{scope}>" for scope in scopes])
        flag = f"<--{field.name.replace('_', '-')}{'=' * (field.default is not False)}>"
        where = names or "training PaliGemma, without <--task=>"
        reasons[field.name] = f"{flag} applies to {where}"
    return reasons


def check_options(options: TrainOptions) -> None:
    """Raise UsageError for options that do not go together. Reads no file but the adapter's."""
    if options.task is None and options.model is None:
        raise UsageError(
            "<--model=> is missing: without <--task=>, train fine-tunes PaliGemma",
            hint="name a checkpoint, such as <--model google/paligemma2-3b-pt-224>; <--task=> "
            "trains other models",
        )
    for reason in inapplicable(options).values():
        raise UsageError(reason, hint="omit it")
    has_evaluation = bool(options.eval or options.eval_fraction)
    needs_evaluation = "<--eval-every=>" if options.eval_every else "<--patience=>"
    conflicts = (
        (
            options.task is not None and (options.model is None) == (options.init is None),
            "train starts from a checkpoint or from random weights",
            "give either <--model NAME> or <--init tiny|small|base>",
        ),
        (
            options.revision is not None and not is_on_hub(options.model),
            f"{options.model} has no revisions to choose from",
            "<--revision=> needs a <--model=> on the Hub",
        ),
        (
            options.probe and options.init is not None,
            "<--probe> trains only the head of a checkpoint, and <--init=> starts without one",
            "<--model NAME>",
        ),
        (
            options.adapter is not None and (options.rank or options.alpha or options.targets),
            "<--adapter=> already has a rank, an alpha and targets",
            "remove <--rank=>, <--alpha=> and <--targets=>",
        ),
        (
            {*options.freeze} == {*PARTS},
            "<--freeze=> names all parts of the model, so there is nothing to train",
            "remove one of them",
        ),
        (
            options.epochs is not None and options.steps is not None,
            "<--epochs=> and <--steps=> both set the length of the training",
            "give only one",
        ),
        (
            options.eval and options.eval_fraction,
            "<--eval=> and <--eval-fraction=> both set the rows to evaluate on",
            "give only one",
        ),
        (
            (options.eval_every or options.patience) and not has_evaluation,
            f"{needs_evaluation} needs rows to evaluate on",
            "<--eval SOURCE> or <--eval-fraction 0.05>",
        ),
    )
    for is_conflict, message, hint in conflicts:
        if is_conflict:
            raise UsageError(message, hint=hint)
