"""The body of `train`: rows and model are read, then the trainer runs until it ends or is ended."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli import __version__
from pgcli.cli.find_model import find_model
from pgcli.cli.job.shutdown import GracefulShutdown
from pgcli.cli.options.training import (
    EvaluationOptions,
    LearningOptions,
    TrainingInputOptions,
    TrainingModelOptions,
    TrainingOutputOptions,
)
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.duration import duration
from pgcli.errors import OutputExists, UsageError
from pgcli.images import ImageLimits
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.destination import check_destination
from pgcli.state.lock import output_lock, remove_locks
from pgcli.state.run_record import differences
from pgcli.state.state_folder import state_folder
from pgcli.state.write_errors import make_folder, wrap_write_errors

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.training.rows import ImageStore, TrainingRows
    from pgcli.training.settings import TrainingSettings
    from pgcli.training.trainer import Trainer

RUN = "run.json"
MAX_NAMED = 3  # images that are named in a message


@dataclass(frozen=True)
class TrainCommand:
    """The options of a command line."""

    sources: Sequence[str]
    learning: LearningOptions
    evaluation: EvaluationOptions
    model: TrainingModelOptions
    input: TrainingInputOptions
    output: TrainingOutputOptions

    @property
    def column(self) -> str:
        """The column of what is learned."""
        is_contrastive = self.learning.task == "contrastive"
        return self.input.text_column if is_contrastive else self.input.label_column

    @property
    def folder(self) -> Path:
        """The folder of the results. Raises UsageError if none is given."""
        if self.output.output in (None, "-"):
            raise UsageError("train writes a model", hint="name its folder: -o runs/model")
        return Path(self.output.output or "").expanduser()


def run_training(command: TrainCommand) -> int:
    """Train; return 3 if images could not be read, else 0."""
    screen = Screen(quiet=command.output.quiet)
    if command.learning.task is None:
        raise UsageError(
            "--task is missing; training PaliGemma to answer (--method lora) is not there yet",
            hint="--task contrastive trains two towers, --task classify a classifier",
        )
    with screen.status("loading PyTorch"):
        settings = make_settings(command)
    settings.check(has_eval=command.evaluation.eval is not None)
    folder = command.folder
    if not command.output.overwrite and read_json(folder / RUN) is None:
        check_destination(folder, kind="folder")
    if command.output.dry_run:
        return dry_run(command, settings, screen)
    with opened_state(folder) as state:
        from pgcli.training.rows import ImageStore

        store = ImageStore(state)
        try:
            return train_rows(command, settings, state, store, screen)
        finally:
            store.close()


def make_settings(command: TrainCommand) -> TrainingSettings:
    """The settings of the run."""
    from pgcli.training.settings import TrainingSettings

    learning, evaluation = asdict(command.learning), command.evaluation
    return TrainingSettings(
        **learning,
        model=command.model.model,
        init=command.model.init,
        eval_fraction=evaluation.eval_fraction,
        eval_every=evaluation.eval_every,
        patience=evaluation.patience,
        column=command.column,
    )


@contextmanager
def opened_state(folder: Path) -> Iterator[Path]:
    """The folder of the run's state, locked; it is removed where nothing was saved."""
    state = state_folder(folder)
    with wrap_write_errors(state):
        make_folder(state)
    try:
        with output_lock(state):
            yield state
    finally:
        remove_locks(state)
        with suppress(OSError):  # not empty
            state.rmdir()


def train_rows(
    command: TrainCommand,
    settings: TrainingSettings,
    state: Path,
    store: ImageStore,
    screen: Screen,
) -> int:
    """Read the rows and the model, and train."""
    from pgcli.training.setup import ImageReading, make_task, split_rows
    from pgcli.training.trainer import Trainer

    rows, held_out = read_all(command, store, screen)
    train, evaluation = split_rows(settings, rows, held_out)
    checkpoint = find_checkpoint(command, screen)
    record = run_record(command, settings, rows, held_out, checkpoint)
    resumes = check_run(command, record)
    input = command.input
    limits = ImageLimits() if input.max_pixels is None else ImageLimits(input.max_pixels)
    reading = ImageReading(store, input.workers, limits, input.fast_decode, input.url_reader)
    with screen.progress("reading the model and features", unit="batches") as progress:
        task = make_task(
            settings,
            train,
            evaluation,
            reading,
            checkpoint=checkpoint,
            device=command.model.device,
            dtype=command.model.dtype,
            track=progress.track,
        )
    if not resumes:
        begin_run(command, state, record)
    options = settings.trainer_options(task.order.steps_per_epoch, is_evaluated=bool(evaluation))
    trainer = Trainer(task, options, command.folder, state)
    began = perf_counter()
    is_complete = run_trainer(trainer, screen)
    seconds = perf_counter() - began
    faults = task.faults
    result = {"complete": is_complete, **asdict(trainer.progress), "unreadable": [*faults]}
    write_json(command.folder / RUN, record | {"result": result})
    report(command, trainer, rows, faults, seconds, screen)
    return 3 if faults or rows.faults else 0


def read_all(
    command: TrainCommand, store: ImageStore, screen: Screen
) -> tuple[TrainingRows, TrainingRows | None]:
    """The rows of the sources, and those of `--eval`."""
    from pgcli.training.rows import read_rows

    read = partial(
        read_rows,
        options=command.input.read_options,
        store=store,
        column=command.column,
        folders_are_labels=command.learning.task == "classify",
    )
    with screen.progress("reading rows", unit="rows") as progress:
        rows = read(command.sources, track=progress.track)
        given = command.evaluation.eval
        held_out = None if given is None else read([given], track=progress.track)
    for found in filter(None, (rows, held_out)):
        if found.without_target:
            screen.info(f"{found.without_target:,} rows without {command.column!r} are left out")
    return rows, held_out


def find_checkpoint(command: TrainCommand, screen: Screen) -> Checkpoint | None:
    """The files of `--model`, downloaded where they are missing."""
    if command.model.model is None:
        return None
    return find_model(command.model.model, command.model.revision, screen)


def run_record(
    command: TrainCommand,
    settings: TrainingSettings,
    rows: TrainingRows,
    held_out: TrainingRows | None,
    checkpoint: Checkpoint | None,
) -> dict[str, Any]:
    """What `run.json` says; a run is resumed by one of the same `settings`."""
    import torch

    from pgcli.checkpoints.file_digests import folder_digest

    fixed = asdict(settings) | {
        "checkpoint": None if checkpoint is None else folder_digest(checkpoint.folder),
        "dtype": command.model.dtype,
        "rows": rows.digest,
        "eval_rows": None if held_out is None else held_out.digest,
        "max_pixels": command.input.max_pixels,
        "fast_decode": command.input.fast_decode,
    }
    return {
        "pgcli": __version__,
        "torch": torch.__version__,
        "sources": [*command.sources],
        "eval": command.evaluation.eval,
        "counts": {
            "rows": len(rows.rows),
            "eval_rows": None if held_out is None else len(held_out.rows),
            "without_target": rows.without_target,
            "faults": rows.faults,
        },
        "settings": fixed,
    }


def check_run(command: TrainCommand, record: Mapping[str, Any]) -> bool:
    """Whether the folder has a run to resume. Raises OutputExists if it has other settings."""
    folder = command.folder
    earlier = read_json(folder / RUN)
    if earlier is None or command.output.overwrite:
        return False
    if changes := differences(earlier.get("settings", {}), record["settings"]):
        raise OutputExists(
            f"{folder} belongs to a run with other settings: {'; '.join(changes)}",
            hint="the command that made it resumes it; another -o leaves it alone; "
            "--overwrite begins again",
        )
    return True


def begin_run(command: TrainCommand, state: Path, record: Mapping[str, Any]) -> None:
    """Create the folder of a new run, without what an earlier one left there."""
    folder = command.folder
    with wrap_write_errors(folder):
        folder.mkdir(exist_ok=True)
        if command.output.overwrite:
            remove_run(folder, state)
    write_json(folder / RUN, dict(record))


def remove_run(folder: Path, state: Path) -> None:
    """Remove the files of an earlier run, and nothing else. Raises OSError."""
    from pgcli.checkpoints.processor_files import IMAGE_PROCESSOR_FILES, TOKENIZER_FILES
    from pgcli.training.trainer import CURVES, LAST, METRICS, STATE

    model = ("config.json", "model.safetensors", *IMAGE_PROCESSOR_FILES, *TOKENIZER_FILES)
    for file in (
        state / STATE,
        *(folder / name for name in (RUN, METRICS, CURVES, *model)),
        *(folder / LAST / name for name in model),
    ):
        file.unlink(missing_ok=True)
    with suppress(OSError):  # it is not there, or has files of others
        (folder / LAST).rmdir()


def run_trainer(trainer: Trainer, screen: Screen) -> bool:
    """Run the trainer with its progress shown, until it ends or a signal comes."""
    steps, done = trainer.options.steps, trainer.progress.step
    if done:
        screen.info(f"{done:,} of {steps:,} steps are done already")

    def on_signal() -> None:
        screen.info("ending after this step; the same command goes on")

    with screen.progress("training", steps, initial=done, unit="steps") as progress:

        def on_status() -> None:
            screen.info(progress.line())

        with GracefulShutdown(on_signal, on_status, pipes=False) as shutdown:

            def on_update(line: Mapping[str, Any]) -> None:
                progress.advance()
                if "eval_loss" in line:
                    screen.info(evaluation_line(line))

            is_complete = trainer.run(should_stop=shutdown.should_stop, on_update=on_update)
    shutdown.raise_if_requested()
    return is_complete


def evaluation_line(line: Mapping[str, Any]) -> str:
    """`step 100: loss 1.2, evaluation: loss 1.3, accuracy 0.7`."""
    found = ", ".join(
        f"{name.removeprefix('eval_').replace('_', ' ')} {value:.4g}"
        for name, value in line.items()
        if name.startswith("eval_")
    )
    return f"step {line['step']:,}: loss {line['loss']:.4g}; evaluation: {found}"


def report(
    command: TrainCommand,
    trainer: Trainer,
    rows: TrainingRows,
    faults: Mapping[str, str],
    seconds: float,
    screen: Screen,
) -> None:
    """Print what was learned and what to do with it."""
    folder, progress = command.folder, trainer.progress
    facts = [
        ("model", str(folder)),
        ("rows", f"{len(rows.rows):,}"),
        ("steps", f"{progress.step:,} in {duration(seconds)}"),
    ]
    if progress.best:
        best = ", ".join(
            f"{name.replace('_', ' ')} {value:.4g}"
            for name, value in progress.best.items()
            if name != "step"
        )
        facts.append(("best", f"step {progress.best['step']:,}: {best}"))
    screen.table(facts)
    if lost := len(faults) + rows.faults:
        named = "; ".join(f"{name}: {why}" for name, why in [*faults.items()][:MAX_NAMED])
        images = f"{lost:,} image{'s' * (lost != 1)}"
        screen.info(f"{images} could not be read{': ' if named else ''}{named}")
    name = shlex.quote(str(folder))
    use = (
        f"pgcli classify photos --model {name}"
        if command.learning.task == "classify"
        else f'pgcli score photos --model {name} --text "a red star"'
    )
    screen.next_steps([("use it", use)])


def dry_run(command: TrainCommand, settings: TrainingSettings, screen: Screen) -> int:
    """Read the rows and print the plan. Writes nothing."""
    import tempfile

    from pgcli.training.rows import ImageStore
    from pgcli.training.setup import split_rows

    with tempfile.TemporaryDirectory() as folder:
        store = ImageStore(Path(folder))
        try:
            rows, held_out = read_all(command, store, screen)
        finally:
            store.close()
    train, evaluation = split_rows(settings, rows, held_out)
    recipe = settings.recipe
    per_epoch = max(1, len(train) // min(recipe.batch_size, len(train)))
    options = settings.trainer_options(per_epoch, is_evaluated=bool(evaluation))
    facts = [
        ("task", settings.task),
        ("model", settings.model or f"new, {settings.init}"),
        ("rows", f"{len(train):,} to train on, {len(evaluation):,} to evaluate on"),
        ("steps", f"{options.steps:,}, {per_epoch:,} in an epoch"),
        ("batch", f"{min(recipe.batch_size, len(train)):,} rows"),
        ("learning rate", f"{options.learning_rate:g}, {options.warmup:,} steps of warm-up"),
        ("weight decay", f"{options.weight_decay:g}"),
        ("evaluation", f"every {options.eval_every:,} steps" if options.eval_every else "none"),
        ("output", str(command.folder)),
    ]
    screen.table(facts)
    return 0
