"""The options of `train`, and what they say of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pgcli.cli.find_model import revision_of
from pgcli.cli.ui.console import Screen
from pgcli.declare import opt, same
from pgcli.errors import UsageError
from pgcli.inputs.paths import display_name, url_scheme
from pgcli.run.progress.tally import ErrorBudget
from pgcli.run.request import values
from pgcli.run.request.options import InputOptions, ModelOptions, RunningOptions, models

if TYPE_CHECKING:
    from pgcli.inputs import ReadOptions
    from pgcli.stores import Reader
    from pgcli.training.settings import TrainingSettings
    from pgcli.training.sources import RowReader

_learning = partial(opt, panel="Learning", own=True)
_method = partial(opt, panel="PaliGemma", own=True)
_evaluation = partial(opt, panel="Evaluation", own=True)
PARTS = ("vision", "projector", "decoder")


def layers(value: Any) -> str:
    """Names of layers with commas between them."""
    return value if isinstance(value, str) else ",".join(map(str, value))


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a command line, and its `sources`; the names of `typed` were typed there."""

    sources: Sequence[str] = ()
    typed: frozenset[str] = frozenset()

    task: Literal["contrastive", "classify"] | None = _learning(
        "contrastive: two towers, from images and their texts; classify: labels, from folders of "
        "images or a column; without it, PaliGemma's answers to prompts."
    )
    loss: Literal["sigmoid", "softmax"] | None = _learning(
        "Of --task contrastive.",
        default_text="that of the model: sigmoid for SigLIP, softmax for CLIP",
    )
    probe: bool = _learning("Train the head alone; the towers stay as they are.", default=False)
    epochs: int | None = _learning("How often each row is seen.", min=1, default_text="10")
    steps: int | None = _learning("Updates of the weights, in place of epochs.", min=1)
    batch_size: int | None = _learning(
        "Rows of an update.", min=1, default_text="32, contrastive 256, classify 64"
    )
    micro_batch: int | None = _learning(
        "Rows computed at once, which does not change the update; auto: as many as fit, with "
        "--task the whole batch; halved when memory runs out.",
        metavar="N",
        parse=values.batch_size,
        default_text="auto",
    )
    learning_rate: float | None = _learning(
        "The highest; it rises first, then falls to 0 as a cosine.",
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
        "Of the kernels of linear layers and convolutions.",
        min=0.0,
        default_text="0, contrastive 1e-4, classify 0.05 without --probe",
    )
    label_smoothing: float = _learning(
        "The share of the target that all tokens, or labels, get.", default=0.0, min=0.0, max=0.9
    )
    max_grad_norm: float = _learning("Larger gradients are scaled; 0: none.", default=1.0, min=0.0)
    seed: int = _learning("Equal seeds give equal weights on one CPU.", default=0, min=0)
    method: Literal["lora", "full"] = _method(
        "lora: low-rank adapters beside frozen weights; full: all weights, in float32.",
        default="lora",
    )
    rank: int | None = _method("Of the adapters.", min=1, max=4096, default_text="8")
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
        "Of the adapters' inputs; with --method full, of the decoder's layers.",
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
        "Write also a whole checkpoint with the adapter merged: DIR/merged.", default=False
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
    eval_every: int | None = _evaluation(
        "Steps between two of them.", min=1, default_text="20 times in a run"
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
    init: Literal["tiny", "small", "base"] | None = opt(
        "Begin with random weights of this size; small and base are ViT-S/16 and ViT-B/16, tiny "
        "learns on a CPU.",
        panel="Which model",
        own=True,
    )
    revision: str | None = same(ModelOptions, "revision")
    device: str = same(ModelOptions, "device")
    dtype: str = same(ModelOptions, "dtype")
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
        default_text="prefix or prompt",
    )
    answer_column: str | None = opt(
        "Column of a manifest with the answers.",
        panel="Which images",
        own=True,
        metavar="NAME",
        default_text="suffix, answers, answer, label, caption, text or txt",
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
    output: str | None = opt(
        "The folder of the trained model, its metrics and curves.",
        panel="Where to",
        own=True,
        metavar="DIR",
        short=("-o",),
    )
    on_error: Literal["record", "stop"] = same(RunningOptions, "on_error")
    max_errors: ErrorBudget | None = same(RunningOptions, "max_errors")
    overwrite: bool = opt(
        "Begin again, in place of the run that is there.",
        panel="How to run",
        own=True,
        default=False,
    )
    dry_run: bool = same(RunningOptions, "dry_run")
    quiet: bool = same(RunningOptions, "quiet")

    def make_reader(self) -> Reader | None:
        """A reader of addresses, if these are allowed."""
        from pgcli.stores import make_reader

        return make_reader(allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts)

    @property
    def read_options(self) -> ReadOptions:
        """How the sources are read."""
        from pgcli.inputs import ReadOptions
        from pgcli.inputs.options import NameFilter

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

    @classmethod
    def of(
        cls, sources: Sequence[str], values: Mapping[str, Any], typed: Collection[str]
    ) -> TrainOptions:
        """The options with these values; of other places, a revision only of the Hub."""
        names = {field.name for field in fields(cls)}
        given = {name: value for name, value in values.items() if name in names}
        given["revision"] = revision_of(values.get("model"), values, typed)
        return cls(sources=sources, typed=frozenset(typed), **given)

    @cached_property
    def settings(self) -> TrainingSettings:
        """The settings of the run, for which PyTorch is loaded."""
        from pgcli.training.answer_settings import AnswerSettings
        from pgcli.training.settings import TrainingSettings

        own = {"task": self.task or "answer", "answer": AnswerSettings(**self._of(AnswerSettings))}
        return TrainingSettings(**self._of(TrainingSettings) | own)

    def _of(self, record: Any) -> dict[str, Any]:
        """The values of the fields that a record has too."""
        names = (field.name for field in fields(record))
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    @property
    def column(self) -> str:
        """The column of what is learned."""
        is_contrastive = self.task == "contrastive"
        return self.text_column if is_contrastive else self.label_column

    def row_reader(self, screen: Screen) -> RowReader:
        """How rows are read, and what is learned of each."""
        from pgcli.cli.run_command import RunOnScreen
        from pgcli.examples import ExampleColumns
        from pgcli.training.sources import RowReader

        self._check_columns()
        if self.task is not None:
            self._check_no_prompts()
            return RowReader(label=self.column, has_folders=self.task == "classify")
        columns = ExampleColumns(self.prompt_column, self.answer_column)
        return RowReader(columns, self.prompt, on_event=RunOnScreen(screen))

    def _check_no_prompts(self) -> None:
        """Raise UsageError for an option of prompts and answers."""
        for name in ("prompt", "prompt_column", "answer_column"):
            if getattr(self, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is of rows that PaliGemma learns to answer",
                    hint="leave it out, or leave out --task",
                )

    def _check_columns(self) -> None:
        """Raise UsageError for the column of another task."""
        for name, task in (("text_column", "contrastive"), ("label_column", "classify")):
            if name in self.typed and self.task != task:
                raise UsageError(
                    f"--{name.replace('_', '-')} goes with --task {task}", hint="leave it out"
                )

    @property
    def folder(self) -> Path:
        """The folder of the results, on this machine. Raises UsageError for none and addresses."""
        if self.output in (None, "-"):
            raise UsageError("train writes a model", hint="name its folder: -o runs/model")
        name = self.output or ""
        if url_scheme(name):
            raise UsageError(
                f"{display_name(name)} is an address, and train writes to a folder of this machine",
                hint="-o runs/model, and copy it from there",
            )
        return Path(name).expanduser()


#: The records of the command.
RECORDS = (TrainOptions,)
