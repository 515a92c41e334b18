"""The options of training, their defaults, which go together, and what they say of a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pgcli.declare import REQUIRED, opt, same
from pgcli.errors import UsageError
from pgcli.images import ImageLimits
from pgcli.inputs import ReadOptions
from pgcli.inputs.options import PROMPT_COLUMNS, NameFilter
from pgcli.inputs.paths import display_name
from pgcli.labelled_rows import ANSWER_COLUMNS, ExampleColumns, one_of
from pgcli.pipeline.request import values
from pgcli.pipeline.request.applies import is_on_hub
from pgcli.pipeline.request.error_budget import ErrorBudget
from pgcli.pipeline.request.options import InputOptions, ModelOptions, RunningOptions, models
from pgcli.stores import Reader, make_reader
from pgcli.stores.urls import url_scheme

if TYPE_CHECKING:
    from pgcli.pipeline.progress.events import OnEvent
    from pgcli.training.answers.lora import LoraSettings
    from pgcli.training.sources import RowReader
    from pgcli.training.trainer import TrainerOptions


class Recipe(NamedTuple):
    """Defaults that depend on the task; `docs/reference/training.md` has their sources."""

    batch_size: int
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]


CONTRASTIVE_BETAS, BETAS = (0.9, 0.95), (0.9, 0.999)
#: By the task and the way in which the weights begin.
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
EPOCHS = 10
EVALUATIONS = 20  # of a run for which --eval-every is not given
PARTS = ("vision", "projector", "decoder")  # of PaliGemma, that can be frozen
#: What options apply to: one of the tasks, or one of PaliGemma's methods.
SCOPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("init", "probe"), ("--task contrastive", "--task classify")),
        **dict.fromkeys(("loss", "text_column"), ("--task contrastive",)),
        "label_column": ("--task classify",),
        **dict.fromkeys(
            ("prompt", "prompt_column", "answer_column", "dropout", "gradient_checkpointing"),
            ("--method lora", "--method full"),
        ),
        **dict.fromkeys(
            ("rank", "alpha", "targets", "quantize", "merge", "adapter"), ("--method lora",)
        ),
        "freeze": ("--method full",),
        "method": ("--method lora", "--method full"),
    }
)
#: The options that change weights, by which a run is resumed.
FIXED = (
    *("model", "init", "loss", "probe", "epochs", "steps", "warmup"),
    *("max_grad_norm", "seed", "eval_fraction"),
    *("eval_every", "patience", "dtype", "max_pixels", "fast_decode"),
)
FIXED_OF_ANSWERS = ("method", "dropout", "quantize")

_learning = partial(opt, panel="Learning", own=True)
_method = partial(opt, panel="PaliGemma", own=True)
_evaluation = partial(opt, panel="Evaluation", own=True)


def steps_or_epochs(value: object) -> int | float:
    """A number of steps, `N`, or one of epochs, `Xe`, which a float is too. Raises ValueError."""
    text = values.plain_text(value)
    if isinstance(value, float) or text.endswith("e"):
        epochs = float(text.removesuffix("e"))
        if 0 < epochs < math.inf:
            return epochs
    elif text.isdecimal() and int(text):
        return int(text)
    raise ValueError(f"{value!r} is neither a number of steps nor, as 0.5e, one of epochs")


def layers(value: Any) -> str:
    """Names of layers with commas between them."""
    return value if isinstance(value, str) else ",".join(map(str, value))


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a command line, and its `sources`."""

    sources: Sequence[str] = ()

    task: Literal["contrastive", "classify"] | None = _learning(
        "contrastive: two towers, from images and their texts; classify: labels, from folders of "
        "images or a column; without it, PaliGemma's answers to prompts."
    )
    loss: Literal["sigmoid", "softmax"] | None = _learning(
        "The loss of --task contrastive.",
        default_text="that of the model: sigmoid for SigLIP, softmax for CLIP",
    )
    probe: bool = _learning("Train the head alone; the towers stay as they are.", default=False)
    epochs: int | None = _learning("How often each row is seen.", min=1, default_text="10")
    steps: int | None = _learning("Updates of the weights, in place of epochs.", min=1)
    batch_size: int | None = _learning(
        "Rows of an update.", min=1, default_text="32, contrastive 256, classify 64"
    )
    micro_batch: int | None = _learning(
        "Rows computed at once, which does not change the update; auto: the fastest number that "
        "fits, with --task the whole batch; halved when memory runs out.",
        min=1,
        auto=True,
    )
    learning_rate: float | None = _learning(
        "The highest learning rate: it rises first, then falls to 0 as a cosine.",
        min=0.0,
        above=True,
        default_text="lora 1e-4, full 1e-5; contrastive 1e-5, classify 3e-5, of --init and "
        "--probe 1e-3",
    )
    warmup: float = _learning(
        "Steps in which the learning rate rises.",
        default=0.05,
        metavar="N|P%",
        parse=values.count_or_share,
        default_text="5%",
    )
    weight_decay: float | None = _learning(
        "The weight decay of the kernels of linear layers and convolutions.",
        min=0.0,
        default_text="0, contrastive 1e-4, classify 0.05 without --probe",
    )
    max_grad_norm: float = _learning(
        "Gradients with a larger norm are scaled down to it; 0: none are.", default=1.0, min=0.0
    )
    seed: int = _learning("Equal seeds give equal weights on one CPU.", default=0, min=0)
    method: Literal["lora", "full"] = _method(
        "lora: low-rank adapters beside frozen weights; full: all weights, in float32.",
        default="lora",
    )
    rank: int | None = _method("The rank of the adapters.", min=1, max=4096, default_text="8")
    alpha: float | None = _method(
        "The adapters are scaled by alpha / rank.", min=0.0, above=True, default_text="32"
    )
    targets: str | None = _method(
        "Layers with adapters. attention: of the decoder; all: its MLP too; attention,vision and "
        "all,vision: the vision tower's, too.",
        metavar="LAYERS",
        parse=layers,
        default_text="attention",
    )
    dropout: float = _method(
        "Dropout of the adapters' inputs; with --method full, of the decoder's layers.",
        default=0.0,
        min=0.0,
        max=0.9,
    )
    quantize: Literal["none", "int8"] = _method(
        "int8: the decoder's frozen layers take half the memory of bfloat16.", default="none"
    )
    freeze: tuple[str, ...] = _method(
        "With --method full, parts that stay as they are: vision, projector, decoder.",
        metavar="PART,...",
        repeat=True,
        commas=True,
        choices=PARTS,
        default_text="none",
    )
    merge: bool = _method(
        "Also write a whole checkpoint with the adapter merged: DIR/merged.", default=False
    )
    gradient_checkpointing: Literal["auto", "on", "off"] = _method(
        "Compute activations twice to hold fewer; auto: once memory has run out, and on a CPU for "
        "models over 1 GB.",
        default="auto",
    )
    eval: str | None = _evaluation("Measure on these rows.", metavar="SOURCE")
    eval_fraction: float = _evaluation(
        "Measure on this share of the images, which are not trained on.",
        default=0.0,
        min=0.0,
        max=0.9,
    )
    eval_every: int | float | None = _evaluation(
        "Steps between two evaluations, or epochs: 1e, 0.5e.",
        metavar="N|Ne",
        parse=steps_or_epochs,
        default_text="20 times in a run",
    )
    patience: int = _evaluation(
        "Stop after N evaluations without a better one; 0: never.", default=0, min=0
    )
    model: str | None = opt(
        "Begin with these weights: a folder, a name on the Hub, demo, or with --task demo-towers.",
        panel="Which model",
        own=True,
        metavar="NAME",
        choices=models,
    )
    adapter: str | None = opt(
        "Go on from this adapter of the model, with its rank, alpha and targets.",
        panel="Which model",
        own=True,
        metavar="DIR",
    )
    init: Literal["tiny", "small", "base"] | None = opt(
        "Begin with random weights of this size; small and base are ViT-S/16 and ViT-B/16, tiny "
        "learns on a CPU.",
        panel="Which model",
        own=True,
    )
    revision: str | None = same(ModelOptions, "revision")
    device: str = same(ModelOptions, "device")
    dtype: values.Dtype = same(ModelOptions, "dtype")
    image_column: str = same(InputOptions, "image_column")
    id_column: str = same(InputOptions, "id_column")
    prompt: str | None = opt(
        "The prompt of all rows, where they have none, such as: caption en. A column in braces is "
        "replaced by its value.",
        panel="Which images",
        own=True,
        metavar="TEXT",
    )
    prompt_column: str | None = opt(
        "Column of a manifest with the prompts.",
        panel="Which images",
        own=True,
        metavar="NAME",
        default_text=one_of(PROMPT_COLUMNS),
    )
    answer_column: str | None = opt(
        "Column of a manifest with the answers.",
        panel="Which images",
        own=True,
        metavar="NAME",
        default_text=one_of(ANSWER_COLUMNS),
    )
    text_column: str = opt(
        "Column of a manifest with the texts.", panel="Which images", default="text", metavar="NAME"
    )
    label_column: str = opt(
        "Column of a manifest with the labels.",
        panel="Which images",
        default="label",
        metavar="NAME",
    )
    include: tuple[str, ...] = same(InputOptions, "include")
    exclude: tuple[str, ...] = same(InputOptions, "exclude")
    workers: int | None = same(InputOptions, "workers")
    max_pixels: int | None = opt(
        "Larger images are left out.",
        panel="Which images",
        own=True,
        min=1,
        default_text="89,478,485",
    )
    fast_decode: bool = same(InputOptions, "fast_decode")
    allow_outside_root: bool = same(InputOptions, "allow_outside_root")
    allow_urls: bool = same(InputOptions, "allow_urls")
    allow_private_hosts: bool = same(InputOptions, "allow_private_hosts")
    output: str = opt(
        "The folder of the trained model, its metrics and curves.",
        panel="Where to",
        default=REQUIRED,
        own=True,
        metavar="DIR",
        short=("-o",),
    )
    on_error: Literal["record", "stop"] = same(
        RunningOptions,
        "on_error",
        "record: a row that cannot be read is left out; stop: end there.",
    )
    max_errors: ErrorBudget | None = same(RunningOptions, "max_errors")
    overwrite: bool = opt(
        "Begin again, in place of the run that is there.",
        panel="How to run",
        own=True,
        default=False,
    )
    dry_run: bool = same(RunningOptions, "dry_run")
    quiet: bool = same(RunningOptions, "quiet")

    @classmethod
    def of(
        cls, sources: Sequence[str], values: Mapping[str, Any], typed: Collection[str]
    ) -> TrainOptions:
        """The options with these values.

        Those that were not typed, but set elsewhere, and do not apply are left out.
        """
        default = {field.name: field.default for field in fields(cls)}
        known_values = {name: value for name, value in values.items() if name in default}
        options = cls(sources=sources, **known_values)
        unused: dict[str, Any] = {
            name: default[name]
            for name, scopes in SCOPES.items()
            if options.scope not in scopes and name not in typed
        }
        if not is_on_hub(options.model) and "revision" not in typed:
            unused["revision"] = None
        return replace(options, **unused)

    def check(self) -> None:
        """Raise UsageError for options that do not go together. Reads nothing."""
        if self.task is None and self.model is None:
            raise UsageError(
                "train teaches PaliGemma to answer, and <--model=> is missing",
                hint="<--model google/paligemma2-3b-pt-224>; <--task=> trains other models",
            )
        self._check_scopes()
        if self.task is not None and (self.model is None) == (self.init is None):
            raise UsageError(
                "a run begins with a checkpoint or with random weights",
                hint="give one of <--model NAME> and <--init tiny|small|base>",
            )
        if self.revision is not None and not is_on_hub(self.model):
            raise UsageError(
                f"{self.model} has no revisions to choose from",
                hint="<--revision=> goes with a name on the Hub",
            )
        if self.probe and self.init is not None:
            raise UsageError(
                "<--probe> trains the head of a checkpoint alone, and <--init=> has none",
                hint="<--model NAME>",
            )
        if self.adapter is not None and (self.rank or self.alpha or self.targets):
            raise UsageError(
                "<--adapter=> has a rank, an alpha and targets of its own",
                hint="leave out <--rank=>, <--alpha=> and <--targets=>",
            )
        if {*self.freeze} == {*PARTS}:
            raise UsageError(
                "<--freeze=> names all parts of the model, and none is left to train",
                hint="leave one out",
            )
        if self.epochs is not None and self.steps is not None:
            raise UsageError(
                "<--epochs=> and <--steps=> both say how long to train", hint="give one"
            )
        if self.eval and self.eval_fraction:
            raise UsageError(
                "<--eval=> and <--eval-fraction=> both say what to evaluate on", hint="give one"
            )
        if (self.eval_every or self.patience) and not (self.eval or self.eval_fraction):
            option = "<--eval-every=>" if self.eval_every else "<--patience=>"
            raise UsageError(
                f"{option} needs rows to evaluate on",
                hint="<--eval SOURCE> or <--eval-fraction 0.05>",
            )
        _ = self.lora  # checks its values

    @property
    def scope(self) -> str:
        """The task or the method, which not all options apply to."""
        return f"--task {self.task}" if self.task else f"--method {self.method}"

    def _check_scopes(self) -> None:
        """Raise UsageError for an option of another task or method."""
        for field in fields(self):
            scopes = SCOPES.get(field.name, (self.scope,))
            if self.scope in scopes or getattr(self, field.name) == field.default:
                continue
            tasks = [f"<{scope}>" for scope in scopes if scope.startswith("--task")]
            where = " and ".join(tasks if self.task else [f"<{scope}>" for scope in scopes])
            raise UsageError(
                f"<--{field.name.replace('_', '-')}{'=' * (field.default is not False)}> goes with "
                + (where or "training PaliGemma, without <--task=>"),
                hint="leave it out",
            )

    @property
    def task_name(self) -> str:
        """What is learned: answer, contrastive or classify."""
        return self.task or "answer"

    @property
    def recipe(self) -> Recipe:
        """The defaults of the run, with the values that are given."""
        beginning = "probe" if self.probe else "checkpoint" if self.init is None else "new"
        default = RECIPES[self.task_name, beginning if self.task else self.method]
        values = {name: getattr(self, name, None) for name in Recipe._fields}
        return default._replace(**{n: value for n, value in values.items() if value is not None})

    def trainer_options(self, steps_per_epoch: int, *, is_evaluated: bool) -> TrainerOptions:
        """The options of the loop for a number of steps in an epoch."""
        from pgcli.training.trainer import TrainerOptions

        steps = self.steps or (self.epochs or EPOCHS) * steps_per_epoch
        recipe = self.recipe
        every = math.ceil(steps / EVALUATIONS)
        if isinstance(self.eval_every, float):  # in epochs
            every = round(self.eval_every * steps_per_epoch)
        elif self.eval_every is not None:
            every = self.eval_every
        warmup = self.warmup if self.warmup >= 1 else math.ceil(self.warmup * steps)
        return TrainerOptions(
            steps=steps,
            learning_rate=recipe.learning_rate,
            warmup=min(int(warmup), steps),
            weight_decay=recipe.weight_decay,
            betas=recipe.betas,
            max_grad_norm=self.max_grad_norm,
            seed=self.seed,
            eval_every=max(1, every) if is_evaluated else 0,
            patience=self.patience,
        )

    @property
    def lora(self) -> LoraSettings:
        """The adapters. Raises UsageError."""
        from pgcli.training.answers.lora import LoraSettings, adapter_settings

        if self.adapter is not None:
            return adapter_settings(Path(self.adapter), self.dropout)
        default = LoraSettings()
        return LoraSettings(
            rank=self.rank or default.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            targets=self.targets or default.targets,
        )

    @property
    def trains_vision(self) -> bool:
        """Whether the outputs of PaliGemma's vision tower change in training."""
        return self.lora.has_vision if self.method == "lora" else "vision" not in self.freeze

    @property
    def fixed(self) -> dict[str, Any]:
        """The values that the weights follow from, but for rounding, as JSON has them."""
        values = {name: getattr(self, name) for name in FIXED}
        values |= {"task": self.task_name, "column": self.column, **self.recipe._asdict()}
        if self.task is None:
            values |= {name: getattr(self, name) for name in FIXED_OF_ANSWERS}
            values["freeze"] = [*self.freeze]
        if self.task is None and self.method == "lora":
            lora = self.lora
            values |= {"rank": lora.rank, "alpha": lora.lora_alpha, "targets": lora.targets}
        defaults = ("loss", "epochs", "eval_every")
        return {
            name: "default" if value is None and name in defaults else value
            for name, value in values.items()
            if name != "betas"
        }

    @property
    def column(self) -> str | None:
        """The column of texts or labels; None for answers."""
        columns = {"contrastive": self.text_column, "classify": self.label_column}
        return columns.get(self.task_name)

    def row_reader(self, on_event: OnEvent) -> RowReader:
        """How rows are read, and what is learned of each."""
        from pgcli.training.sources import RowReader

        if self.task is not None:
            return RowReader(label=self.column, has_folders=self.task == "classify")
        columns = ExampleColumns(self.prompt_column, self.answer_column)
        is_evaluated = bool(self.eval or self.eval_fraction)
        return RowReader(columns, self.prompt, on_event=on_event, keeps_truth=is_evaluated)

    @property
    def image_limits(self) -> ImageLimits:
        """The largest images that are read."""
        return ImageLimits() if self.max_pixels is None else ImageLimits(self.max_pixels)

    def make_reader(self) -> Reader | None:
        """A reader of addresses, if these are allowed."""
        return make_reader(allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts)

    @property
    def read_options(self) -> ReadOptions:
        """How the sources are read."""
        return ReadOptions(
            image_column=self.image_column,
            id_column=self.id_column,
            names=NameFilter(self.include, self.exclude),
            allow_outside_root=self.allow_outside_root,
            url_reader=self.make_reader(),
        )

    @property
    def error_budget(self) -> ErrorBudget:
        """How many rows with errors end the run."""
        return RunningOptions(on_error=self.on_error, max_errors=self.max_errors).error_budget

    @property
    def folder(self) -> Path:
        """The folder of the results, on this machine. Raises UsageError for other outputs."""
        if self.output == "-":
            raise UsageError("train writes a model", hint="name its folder: <-o runs/model>")
        if url_scheme(self.output):
            raise UsageError(
                f"{display_name(self.output)} is an address, and train writes to a folder of this "
                "machine",
                hint="<-o runs/model>, and copy it from there",
            )
        return Path(self.output).expanduser()


#: The records of the command.
TRAIN_RECORDS = (TrainOptions,)
