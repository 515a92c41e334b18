"""The options of a command line of `train`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.cli.find_model import revision_of
from pgcli.cli.training.options import (
    EvaluationOptions,
    LearningOptions,
    MethodOptions,
    TrainingInputOptions,
    TrainingModelOptions,
    TrainingOutputOptions,
)
from pgcli.cli.ui.console import Screen
from pgcli.declare import build
from pgcli.errors import UsageError
from pgcli.inputs.paths import display_name, url_scheme

if TYPE_CHECKING:
    from pgcli.training.settings import TrainingSettings
    from pgcli.training.targets import Targets


@dataclass(frozen=True)
class TrainCommand:
    """The options of a command line; those of `typed` were typed there."""

    sources: Sequence[str]
    learning: LearningOptions
    method: MethodOptions
    evaluation: EvaluationOptions
    model: TrainingModelOptions
    input: TrainingInputOptions
    output: TrainingOutputOptions
    typed: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, sources: Sequence[str], values: Mapping[str, Any], typed: Collection[str]
    ) -> TrainCommand:
        """The command with these values of options; of other places, a revision only of the Hub."""
        given = {**values, "revision": revision_of(values.get("model"), values, typed)}
        return cls(
            sources,
            learning=build(LearningOptions, given),
            method=build(MethodOptions, given),
            evaluation=build(EvaluationOptions, given),
            model=build(TrainingModelOptions, given),
            input=build(TrainingInputOptions, given),
            output=build(TrainingOutputOptions, given),
            typed=frozenset(typed),
        )

    @cached_property
    def settings(self) -> TrainingSettings:
        """The settings of the run, for which PyTorch is loaded."""
        from pgcli.training.answer_settings import AnswerSettings
        from pgcli.training.settings import TrainingSettings

        return TrainingSettings(
            **asdict(self.learning) | {"task": self.learning.task or "answer"},
            answer=AnswerSettings(**asdict(self.method)),
            model=self.model.model,
            init=self.model.init,
            eval_fraction=self.evaluation.eval_fraction,
            eval_every=self.evaluation.eval_every,
            patience=self.evaluation.patience,
            column=self.column,
        )

    @property
    def column(self) -> str:
        """The column of what is learned."""
        is_contrastive = self.learning.task == "contrastive"
        return self.input.text_column if is_contrastive else self.input.label_column

    def targets(self, screen: Screen) -> Targets:
        """How the targets of rows are found."""
        from pgcli.training.targets import ColumnTargets, LabelTargets

        self._check_columns()
        if self.learning.task is not None:
            self._check_no_prompts()
            is_contrastive = self.learning.task == "contrastive"
            return (ColumnTargets if is_contrastive else LabelTargets)(self.column)
        from pgcli.cli.run_command import RunOnScreen
        from pgcli.cli.training.result_source import source_opener
        from pgcli.training.answer_targets import AnswerTargets

        input = self.input
        return AnswerTargets(
            input.prompt_column,
            input.answer_column,
            input.prompt,
            source_opener(RunOnScreen(screen)),
        )

    def _check_no_prompts(self) -> None:
        """Raise UsageError for an option of prompts and answers."""
        for name in ("prompt", "prompt_column", "answer_column"):
            if getattr(self.input, name) is not None:
                raise UsageError(
                    f"--{name.replace('_', '-')} is of rows that PaliGemma learns to answer",
                    hint="leave it out, or leave out --task",
                )

    def _check_columns(self) -> None:
        """Raise UsageError for the column of another task."""
        for name, task in (("text_column", "contrastive"), ("label_column", "classify")):
            if name in self.typed and self.learning.task != task:
                raise UsageError(
                    f"--{name.replace('_', '-')} goes with --task {task}", hint="leave it out"
                )

    @property
    def folder(self) -> Path:
        """The folder of the results, on this machine. Raises UsageError for none and addresses."""
        if self.output.output in (None, "-"):
            raise UsageError("train writes a model", hint="name its folder: -o runs/model")
        name = self.output.output or ""
        if url_scheme(name):
            raise UsageError(
                f"{display_name(name)} is an address, and train writes to a folder of this machine",
                hint="-o runs/model, and copy it from there",
            )
        return Path(name).expanduser()
