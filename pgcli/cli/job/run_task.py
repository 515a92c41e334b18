"""What a run does with each item: the part of a plan that depends on the kind of model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.options import ModelOptions
from pgcli.pipeline import Ask
from pgcli.tasks import AnyQuestion

if TYPE_CHECKING:
    from pgcli.images import ImageSpec


class RunBatchLimits(Protocol):
    """The batch sizes of a run's engine, reduced after OOM errors."""

    def summary(self) -> str: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class RunEngine(Protocol):
    """A loaded model, or several, as far as every run needs it."""

    image_stats: Any

    @property
    def batch_limits(self) -> RunBatchLimits: ...

    @property
    def label(self) -> str: ...

    @property
    def spec(self) -> ImageSpec: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def device(self) -> str: ...

    @property
    def dtype(self) -> str: ...


class RunTask(Protocol):
    """A question with the kind of model that answers it.

    `default_model` is the built-in model that answers where none is named, `knows` what it knows,
    and `real_model` the option that names another one.
    """

    @property
    def default_model(self) -> str: ...

    @property
    def knows(self) -> str: ...

    @property
    def real_model(self) -> str: ...

    @property
    def question(self) -> AnyQuestion: ...

    def check(self, options: ModelOptions, folder: Path | None) -> None:
        """Raise for options and files that cannot be used; the model's `folder` if it is known."""

    def settings(self) -> dict[str, object]:
        """What rows depend on besides the input and the model."""

    def default_settings(self) -> dict[str, object]:
        """The settings that the record of an older run may lack."""

    def facts(self) -> Iterator[tuple[str, str]]:
        """The question, for the table of the plan."""

    def notices(self, options: ModelOptions) -> Iterator[tuple[str, str]]:
        """Messages before the run about options that may surprise, each with a hint."""

    def load(
        self, checkpoint: Checkpoint, adapter: Checkpoint | None, options: ModelOptions
    ) -> RunEngine:
        """Load the model. Raises UsageError for one that cannot do the task."""

    def model_settings(self, engine: Any) -> dict[str, object]:
        """What rows depend on and is known once the model is loaded."""

    def stage(self, engine: Any, should_stop: Callable[[], bool]) -> Ask:
        """The function that answers decoded images."""

    def model_facts(self, engine: Any) -> Iterator[tuple[str, str]]:
        """What the summary says of the model."""
