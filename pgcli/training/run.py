"""One training run: rows and model are read, then the trainer runs until it ends or is ended."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from pgcli.checkpoints.find import Checkpoint, find, find_local
from pgcli.checkpoints.save import merge_adapter
from pgcli.errors import INCOMPLETE, NoInputError, OutputInUse
from pgcli.output.reader import state_folder
from pgcli.pipeline.progress.events import (
    FactTable,
    Message,
    OnEvent,
    Progress,
    Stage,
    StageEnd,
    ignore,
    tracked,
)
from pgcli.pipeline.progress.shutdown import GracefulShutdown
from pgcli.pipeline.state.owner import LOCK, LOCK_SECONDS
from pgcli.stores import Held, LocalStore
from pgcli.stores.files import read_json
from pgcli.stores.target import Target
from pgcli.stores.writing import wrap_write_errors, write_json
from pgcli.training.metrics_file import METRICS, read_metrics
from pgcli.training.options import TrainOptions
from pgcli.training.processes import ALONE, Processes
from pgcli.training.readable_images import check_readable, is_remote, unreadable_images
from pgcli.training.rows import IMAGE_ID, RowErrors, RowKey, RowStore, TrainingRows
from pgcli.training.run_record import MERGED, begin_run, check_run, run_record
from pgcli.training.same_images import check_apart, split_by_image
from pgcli.training.setup import make_task, training_facts
from pgcli.training.status import RUN
from pgcli.training.task import TaskInputs
from pgcli.training.trainer import Trainer
from pgcli.wording import byte_count, count, duration, listed

SHOWN_UPDATES = 20  # the loss that is shown is the mean of so many
MAX_MEASURES = 5

#: Finds the files of a model and shows their download.
FindModel = Callable[[str, str | None], Checkpoint]


@dataclass(frozen=True)
class LearningRows:
    """The rows of the sources and of `--eval`, and those to train and to evaluate on.

    `faults` are the reasons why others cannot be used.
    """

    read: Sequence[TrainingRows]
    train: TrainingRows
    evaluation: TrainingRows
    faults: Mapping[RowKey, str]


@dataclass(frozen=True)
class TrainingSummary:
    """A run that ended: its updates, best evaluation and the rows that could not be used."""

    rows: int
    steps: int
    best: Mapping[str, float]
    unusable: Mapping[RowKey, str]
    count_unusable: int
    seconds: float
    exit_code: int

    def facts(self, folder: Path) -> list[tuple[str, str]]:
        """What was learned, in words."""
        facts = [
            ("model", str(folder)),
            ("rows", f"{self.rows:,}"),
            ("steps", f"{self.steps:,} in {duration(self.seconds)}"),
        ]
        if self.best:
            best = ", ".join(
                f"{name.replace('_', ' ')} {value:.4g}"
                for name, value in self.best.items()
                if name != "step"
            )
            facts.append(("best", f"step {self.best['step']:,}: {best}"))
        return facts


def train(
    options: TrainOptions,
    on_event: OnEvent = ignore,
    find_model: FindModel = find,
    processes: Processes = ALONE,
) -> TrainingSummary | None:
    """Train as the options say, in this process or in one of several; resume where there is a run.

    Of several processes the first writes. Returns None for a dry run. Raises UsageError for options
    that do not go together, OutputExists for a folder of another run, and the errors of reading.
    """
    options.check()
    folder = options.folder

    def check_folder() -> None:
        if not options.overwrite and read_json(folder / RUN) is None:
            Target(name=str(folder), kind="folder").check()

    processes.from_first(check_folder)  # which may have written there before another one looks
    if options.dry_run:
        if processes.is_first:
            dry_run(options, on_event, processes)
        return None
    with opened_state(folder, processes) as state, closing(RowStore(state)) as store:
        return train_rows(options, state, store, on_event, find_model, processes)


def dry_run(options: TrainOptions, on_event: OnEvent, processes: Processes) -> None:
    """Read the rows and say what a run of so many processes would do. Writes nothing.

    Raises OutputExists if the folder has another run.
    """
    with tempfile.TemporaryDirectory() as name, closing(RowStore(Path(name))) as store:
        rows = read_learning_rows(options, store, on_event)
        checkpoint = None if options.model is None else find_local(options.model, options.revision)
        record = run_record(options, rows.read, checkpoint)
        if checkpoint is None and options.model is not None:
            del record["settings"]["checkpoint"]  # unknown before it is on this machine
        check_run(options, record)
        check_images(rows, options)
        sides = rows.train.select([*rows.train, *rows.evaluation])
        track = partial(tracked, on_event=on_event, task="reading images", unit="images")
        unreadable = unreadable_images(sides, options, track=track)
        if unreadable:
            names = listed([*unreadable.values()], separator=";")
            on_event(Message(f"{count(len(unreadable), 'image')} cannot be read: {names}"))
        if remote := sum(map(is_remote, sides.images())):
            on_event(Message(f"{count(remote, 'image')} at addresses not read"))
        inputs = TaskInputs(options, rows.train, rows.evaluation, checkpoint, processes=processes)
        facts = training_facts(inputs, unreadable.keys())
        on_event(FactTable([*facts, ("output", str(options.folder))]))


def check_images(rows: LearningRows, options: TrainOptions) -> None:
    """Raise NoInputError if no image to train on, or none to evaluate on, can be read."""
    check_readable(rows.train, "the rows to train on", options)
    if rows.evaluation:
        check_readable(rows.evaluation, "the rows to evaluate on", options)


def read_learning_rows(options: TrainOptions, store: RowStore, on_event: OnEvent) -> LearningRows:
    """The rows of a run. Raises TooManyErrors, and UsageError for images of both sides."""
    reader, errors = options.row_reader(on_event), RowErrors(options.error_budget)

    def read(sources: Sequence[str]) -> TrainingRows:
        rows = TrainingRows(store)
        track = partial(tracked, on_event=on_event, task="reading rows", unit="rows")
        reader.read(sources, options.read_options, rows, track=track, errors=errors)
        for reason, lost in rows.left_out.items():
            words = {
                "without_target": f"without {reader.missing}",
                "with_error": "with an error in a result file",
            }
            on_event(Message(f"{count(lost, 'row')} {words[reason]} left out"))
        if rows.faults:
            unusable = count(len(rows.faults), "row")
            names = (
                "; ".join(rows.faults) if options.dry_run else listed(rows.faults, separator=";")
            )
            on_event(Message(f"{unusable} that cannot be used left out: {names}"))
        return rows

    rows = read(options.sources)
    if options.task is None and not any(row.target for row in rows):
        on_event(Message("all answers are empty: the model learns to say nothing"))
    held_out = TrainingRows(store) if options.eval is None else read([options.eval])
    track = partial(tracked, on_event=on_event, task="comparing images", unit="images")
    if options.eval is not None:
        check_apart(rows, held_out, track=track)
        return LearningRows([rows, held_out], rows, held_out, errors.reasons)
    if options.eval_fraction:
        parts = split_by_image(rows, options.eval_fraction, options.seed, track=track)
        return LearningRows([rows], *parts, errors.reasons)
    return LearningRows([rows], rows, held_out, errors.reasons)


def train_rows(
    options: TrainOptions,
    state: Path,
    store: RowStore,
    on_event: OnEvent,
    find_model: FindModel,
    processes: Processes,
) -> TrainingSummary:
    """Read the rows and the model, and train.

    Raises NoInputError if there is nothing to train on.
    """
    rows = read_learning_rows(options, store, on_event)
    earlier = {} if options.overwrite else read_json(options.folder / RUN) or {}
    if not earlier.get("result", {}).get("complete"):
        processes.from_first(lambda: check_images(rows, options))
    checkpoint = find_checkpoint(options, find_model, processes)
    record = run_record(options, rows.read, checkpoint)
    resumes = check_run(options, record)
    inputs = TaskInputs(
        options, rows.train, rows.evaluation, checkpoint, len(rows.faults), on_event, processes
    )
    task = make_task(inputs)
    trainer_options = options.trainer_options(
        task.order.steps_per_epoch, is_evaluated=bool(rows.evaluation)
    )
    record["steps"] = trainer_options.steps
    processes.from_first(lambda: None if resumes else begin_run(options, state, record))
    trainer = Trainer(task, trainer_options, options.folder, state, processes)
    began = perf_counter()
    is_complete = run_trainer(trainer, on_event)
    seconds = perf_counter() - began
    faults: dict[RowKey, str] = {}
    for share in processes.gather({**task.faults}):
        faults |= share
    earlier = (read_json(options.folder / RUN) or {}).get("result", {}).get("unreadable", [])
    unreadable = [*dict.fromkeys([*earlier, *(key[0] for key in (*rows.faults, *faults))])]

    def end_run() -> None:
        if is_complete and options.merge and checkpoint is not None:
            with wrap_write_errors(options.folder / MERGED):
                merge_adapter(checkpoint.folder, options.folder, options.folder / MERGED)
        result = {"complete": is_complete, **asdict(trainer.progress), "unreadable": unreadable}
        write_json(options.folder / RUN, record | {"result": result})

    processes.from_first(end_run)
    lines = read_metrics(options.folder / METRICS)
    if is_complete and lines and all(line["loss"] is None for line in lines):
        raise NoInputError(
            "nothing was trained: no image of its updates could be read",
            hint="correct the images, and begin again with <--overwrite>",
        )
    has_lost = bool(unreadable) or any(line.get("lost") for line in lines)
    return summary_of(trainer, rows, faults, seconds, INCOMPLETE if has_lost else 0)


def find_checkpoint(
    options: TrainOptions, find_model: FindModel, processes: Processes
) -> Checkpoint | None:
    """The model to begin with, which the first process downloads; None for random weights."""
    model = options.model
    if model is None:
        return None
    if processes.count > 1:
        processes.from_first(lambda: str(find_model(model, options.revision)))
    return find_model(model, options.revision)


def summary_of(
    trainer: Trainer,
    rows: LearningRows,
    faults: Mapping[RowKey, str],
    seconds: float,
    exit_code: int,
) -> TrainingSummary:
    """The summary of a run that ended; all rows of an unreadable image count."""
    lost = sum(part.count_lost(faults) for part in rows.read)
    return TrainingSummary(
        rows=len(rows.read[0]),
        steps=trainer.progress.step,
        best=trainer.progress.best,
        unusable=faults,
        count_unusable=lost + sum(len(key) > IMAGE_ID for key in faults),
        seconds=seconds,
        exit_code=exit_code,
    )


@contextmanager
def opened_state(folder: Path, processes: Processes) -> Iterator[Path]:
    """The folder of the run's state, locked by the first process.

    It is removed where nothing was saved. Raises OutputInUse.
    """
    state = state_folder(folder)
    with ExitStack() as stack:

        def lock() -> None:
            store = LocalStore(state, create=True)
            try:
                stack.enter_context(store.lock(LOCK, timeout_seconds=LOCK_SECONDS))
            except Held:
                raise OutputInUse(
                    f"{folder} is in use by another run",
                    hint="wait for it, end it, or choose another <-o>",
                ) from None
            stack.callback(store.remove_folders)
            stack.callback(store.delete, [LOCK])

        processes.from_first(lock)
        yield state


def run_trainer(trainer: Trainer, on_event: OnEvent) -> bool:
    """Run the trainer until it ends or a signal comes, and say how it stands."""
    steps, done = trainer.options.steps, trainer.progress.step
    if done:
        on_event(Message(f"{done:,} of {steps:,} steps are done already"))
    losses, latest = deque[float](maxlen=SHOWN_UPDATES), Progress(done)

    def on_update(line: Mapping[str, Any]) -> None:
        nonlocal latest
        if line["loss"] is not None:
            losses.append(line["loss"])
        latest = Progress(line["step"], details=details(line, losses))
        on_event(latest)
        if "eval_loss" in line:
            on_event(Message(evaluation_line(line)))

    def on_signal() -> None:
        on_event(Message("ending after this step; the same command goes on"))

    def on_status() -> None:
        on_event(replace(latest, is_asked=True))

    on_event(Stage("training", steps, initial=done, unit="steps"))
    try:
        with GracefulShutdown(on_signal, on_status, pipes=False) as shutdown:
            is_complete = trainer.run(should_stop=shutdown.should_stop, on_update=on_update)
    finally:
        on_event(StageEnd())
    if not is_complete:  # any process may have had the signal
        shutdown.signum = trainer.processes.largest(shutdown.signum or 0) or None
    shutdown.raise_if_requested()
    return is_complete


def details(line: Mapping[str, Any], losses: Sequence[float]) -> str:
    """`loss 1.234, learning rate 1e-05, gradient norm 0.5, 900 tokens/s, 12 images/s, 3.1 GB`."""
    norm, loss = line["gradient_norm"], sum(losses) / len(losses) if losses else None
    parts = [
        "" if loss is None else f"loss {loss:.4g}",
        f"learning rate {line['learning_rate']:.3g}",
        "" if norm is None else f"gradient norm {norm:.3g}",
        *(
            f"{line[name]:,.{0 if line[name] >= 100 else 1}f} {unit}/s"
            for name, unit in (("tokens_per_second", "tokens"), ("rows_per_second", "images"))
            if name in line
        ),
        byte_count(round(line["memory_mb"] * 1e6)),
    ]
    return ", ".join(filter(None, parts))


def evaluation_line(line: Mapping[str, Any]) -> str:
    """`step 100: loss 1.2; evaluation: loss 1.3, accuracy 0.7`, of many measures the first ones."""
    names = [name for name in line if name.startswith("eval_")]
    measures = ", ".join(
        f"{name.removeprefix('eval_').replace('_', ' ')} {line[name]:.4g}"
        for name in names[:MAX_MEASURES]
    )
    loss = "" if line["loss"] is None else f"loss {line['loss']:.4g}; "
    return f"step {line['step']:,}: {loss}evaluation: {measures}"
