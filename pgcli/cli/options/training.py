"""The options of `train`: what is learned, how, and on which rows it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pgcli.cli.option import option
from pgcli.cli.options import values
from pgcli.cli.options.shared import (
    Device,
    Dtype,
    MaxErrors,
    OnError,
    Quiet,
    Revision,
    models,
    number_option,
)

_learning = partial(option, "Learning", own=True)
_number = partial(number_option, "Learning", own=True)
_evaluation = partial(option, "Evaluation", own=True)
_evaluation_number = partial(number_option, "Evaluation", own=True)
_running = partial(option, "Running")


@dataclass(frozen=True, slots=True)
class TrainingModelOptions:
    """The model that a run begins with."""

    model: Annotated[
        str | None,
        option(
            "Model",
            "--model",
            metavar="NAME",
            choices=models,
            own=True,
            help="Begin with these weights: a folder, a name on the Hub, demo, or with --task "
            "demo-towers.",
        ),
    ] = None
    init: Annotated[
        Literal["tiny", "small", "base"] | None,
        option(
            "Model",
            "--init",
            own=True,
            help="Begin with random weights of this size; small and base are ViT-S/16 and "
            "ViT-B/16, tiny learns on a CPU.",
        ),
    ] = None
    revision: Revision = None
    device: Device = "auto"
    dtype: Dtype = "auto"


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """What is learned and how."""

    task: Annotated[
        Literal["contrastive", "classify"] | None,
        _learning(
            "--task",
            help="contrastive: two towers, from images and their texts; classify: labels, from "
            "folders of images or a column; without it, PaliGemma's answers to prompts.",
        ),
    ] = None
    loss: Annotated[
        Literal["sigmoid", "softmax"] | None,
        _learning(
            "--loss",
            default="that of the model: sigmoid for SigLIP, softmax for CLIP",
            help="Of --task contrastive.",
        ),
    ] = None
    probe: Annotated[
        bool,
        _learning("--probe", help="Train the head alone; the towers stay as they are."),
    ] = False
    epochs: Annotated[
        int | None,
        _number("--epochs", least=1, default="10", help="How often each row is seen."),
    ] = None
    steps: Annotated[
        int | None, _number("--steps", least=1, help="Updates of the weights, in place of epochs.")
    ] = None
    batch_size: Annotated[
        int | None,
        _number(
            "--batch-size",
            least=1,
            default="32, contrastive 256, classify 64",
            help="Rows of an update.",
        ),
    ] = None
    micro_batch: Annotated[
        int | None,
        _learning(
            "--micro-batch",
            metavar="N",
            parser=values.batch_size,
            default="auto",
            help="Rows computed at once, which does not change the update; auto: as many as fit, "
            "with --task the whole batch; halved when memory runs out.",
        ),
    ] = None
    learning_rate: Annotated[
        float | None,
        _number(
            "--learning-rate",
            least=0.0,
            above=True,
            default="lora 1e-4, full 1e-5; contrastive 1e-5, classify 3e-5, of --init and --probe "
            "1e-3",
            help="The highest; it rises first, then falls to 0 as a cosine.",
        ),
    ] = None
    warmup: Annotated[
        float,
        _learning(
            "--warmup",
            metavar="N|P%",
            parser=values.count_or_share,
            default="5%",
            help="Steps in which the learning rate rises.",
        ),
    ] = 0.05
    weight_decay: Annotated[
        float | None,
        _number(
            "--weight-decay",
            least=0.0,
            default="0, contrastive 1e-4, classify 0.05 without --probe",
            help="Of the kernels of linear layers and convolutions.",
        ),
    ] = None
    label_smoothing: Annotated[
        float,
        _number(
            "--label-smoothing",
            least=0.0,
            most=0.9,
            help="The share of the target that all tokens, or labels, get.",
        ),
    ] = 0.0
    max_grad_norm: Annotated[
        float, _number("--max-grad-norm", least=0.0, help="Larger gradients are scaled; 0: none.")
    ] = 1.0
    seed: Annotated[
        int, _number("--seed", least=0, help="Equal seeds give equal weights on one CPU.")
    ] = 0


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """The rows that the model is measured on while it learns."""

    eval: Annotated[
        str | None,
        _evaluation("--eval", metavar="SOURCE", help="Measure on these rows."),
    ] = None
    eval_fraction: Annotated[
        float,
        _evaluation_number(
            "--eval-fraction",
            least=0.0,
            most=0.9,
            help="Measure on this share of the images, which are not trained on.",
        ),
    ] = 0.0
    eval_every: Annotated[
        int | None,
        _evaluation_number(
            "--eval-every", least=1, default="20 times in a run", help="Steps between two of them."
        ),
    ] = None
    patience: Annotated[
        int,
        _evaluation_number(
            "--patience", least=0, help="Stop after N evaluations without a better one; 0: never."
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class TrainingOutputOptions:
    """Where the model is written, and how much is printed."""

    output: Annotated[
        str | None,
        option(
            "Output",
            "--output",
            "-o",
            metavar="DIR",
            own=True,
            help="The folder of the trained model, its metrics and curves.",
        ),
    ] = None
    tensorboard: Annotated[
        bool,
        option(
            "Output",
            "--tensorboard",
            own=True,
            help="Write the metrics for TensorBoard too, into DIR/tensorboard.",
        ),
    ] = False
    on_error: OnError = "record"
    max_errors: MaxErrors = None
    overwrite: Annotated[
        bool,
        _running("--overwrite", own=True, help="Begin again, in place of the run that is there."),
    ] = False
    dry_run: Annotated[
        bool, _running("--dry-run", help="Check everything, print the plan, and exit.")
    ] = False
    quiet: Quiet = False
