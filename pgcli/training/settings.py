"""The settings of a training run, their defaults and which of them go together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pgcli.errors import UsageError
from pgcli.training.answer_settings import AnswerSettings
from pgcli.training.contrastive_task import ContrastiveLoss
from pgcli.training.new_models import ModelSize
from pgcli.training.trainer import TrainerOptions

TaskName = Literal["answer", "contrastive", "classify"]


class Recipe(NamedTuple):
    """Values of the options that a run leaves open; `docs/training.md` has their sources."""

    batch_size: int
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]


CONTRASTIVE_BETAS, BETAS = (0.9, 0.95), (0.9, 0.999)
#: By the task and the way in which the weights begin.
RECIPES: Mapping[tuple[TaskName, str], Recipe] = MappingProxyType(
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
#: The tasks of options that not all have.
TASKS_OF_OPTIONS: Mapping[str, tuple[TaskName, ...]] = MappingProxyType(
    {
        "init": ("contrastive", "classify"),
        "loss": ("contrastive",),
        "probe": ("contrastive", "classify"),
        "label_smoothing": ("answer", "classify"),
    }
)
EPOCHS = 10
WARMUP = 0.05  # of all steps
EVALUATIONS = 20  # of a run for which --eval-every is not given


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """What is trained and how; None stands for the default of the `RECIPES`.

    `model` names a checkpoint and `init` a size; one of them is given. `warmup` counts steps, or is
    a share of them below 1.
    """

    task: TaskName
    model: str | None = None
    init: ModelSize | None = None
    loss: ContrastiveLoss | None = None
    probe: bool = False
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    micro_batch: int | None = None
    learning_rate: float | None = None
    warmup: float = WARMUP
    weight_decay: float | None = None
    label_smoothing: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 0
    eval_fraction: float = 0.0
    eval_every: int | None = None
    patience: int = 0
    column: str = ""
    answer: AnswerSettings = field(default_factory=AnswerSettings)

    def check(self, *, has_eval: bool) -> None:
        """Raise UsageError for settings that do not go together. Reads nothing."""
        self._check_task()
        if self.probe and self.init is not None:
            raise UsageError(
                "--probe trains the head of a checkpoint alone, and --init has none",
                hint="--model NAME",
            )
        if self.epochs is not None and self.steps is not None:
            raise UsageError("--epochs and --steps both say how long to train", hint="give one")
        if has_eval and self.eval_fraction:
            raise UsageError(
                "--eval and --eval-fraction both say what to evaluate on", hint="give one"
            )
        if (self.eval_every or self.patience) and not (has_eval or self.eval_fraction):
            given = "--eval-every" if self.eval_every else "--patience"
            raise UsageError(
                f"{given} needs rows to evaluate on", hint="--eval SOURCE or --eval-fraction 0.05"
            )

    def _check_task(self) -> None:
        """Raise UsageError for settings of another task, and for a run without a beginning."""
        if self.task == "answer":
            if self.model is None:
                raise UsageError(
                    "train teaches PaliGemma to answer, and --model is missing",
                    hint="--model google/paligemma2-3b-pt-224; --task trains other models",
                )
            self.answer.check()
        elif (self.model is None) == (self.init is None):
            raise UsageError(
                "a run begins with a checkpoint or with random weights",
                hint="give one of --model NAME and --init tiny|small|base",
            )
        elif self.answer != AnswerSettings():
            name = next(
                one.name
                for one in fields(AnswerSettings)
                if getattr(self.answer, one.name) != one.default
            )
            raise UsageError(
                f"--{name.replace('_', '-')} goes with training PaliGemma, without --task",
                hint="leave it out",
            )
        for name, tasks in TASKS_OF_OPTIONS.items():
            if getattr(self, name) and self.task not in tasks:
                raise UsageError(
                    f"--{name.replace('_', '-')} goes with "
                    + " and ".join(f"--task {task}" for task in tasks if task != "answer"),
                    hint="leave it out",
                )

    @property
    def values(self) -> dict[str, Any]:
        """The settings that the weights follow from, but for rounding, as JSON has them."""
        values = asdict(self)
        answer = values.pop("answer")
        del answer["gradient_checkpointing"], values["micro_batch"]
        if self.task == "answer":
            values |= answer | {"freeze": [*self.answer.freeze]}
            del values["merge"]  # can be added to a run that is complete
        return values

    @property
    def recipe(self) -> Recipe:
        """The defaults of the run, with the values that are given."""
        beginning = "probe" if self.probe else "checkpoint" if self.init is None else "new"
        if self.task == "answer":
            beginning = self.answer.method
        default = RECIPES[self.task, beginning]
        return Recipe(
            default.batch_size if self.batch_size is None else self.batch_size,
            default.learning_rate if self.learning_rate is None else self.learning_rate,
            default.weight_decay if self.weight_decay is None else self.weight_decay,
            default.betas,
        )

    def trainer_options(self, steps_per_epoch: int, *, is_evaluated: bool) -> TrainerOptions:
        """The options of the loop for a number of steps in an epoch."""
        steps = self.steps or (self.epochs or EPOCHS) * steps_per_epoch
        recipe = self.recipe
        every = self.eval_every or max(1, math.ceil(steps / EVALUATIONS))
        warmup = self.warmup if self.warmup >= 1 else math.ceil(self.warmup * steps)
        return TrainerOptions(
            steps=steps,
            learning_rate=recipe.learning_rate,
            warmup=min(int(warmup), steps),
            weight_decay=recipe.weight_decay,
            betas=recipe.betas,
            max_grad_norm=self.max_grad_norm,
            seed=self.seed,
            eval_every=every if is_evaluated else 0,
            patience=self.patience,
        )
