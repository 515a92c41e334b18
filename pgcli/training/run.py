"""Runs a training: reads the rows and the model, trains, and writes the results."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from pgcli.checkpoints.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    GENERATION,
    IMAGE_PROCESSOR_FILES,
    TOKENIZER_FILES,
    digests,
    folder_digests,
)
from pgcli.checkpoints.find import Checkpoint, find, find_local
from pgcli.checkpoints.save import merge_adapter
from pgcli.errors import INCOMPLETE
from pgcli.labels.columns import LabelColumns
from pgcli.output.reader import state_folder
from pgcli.run.events import (
    Facts,
    FactTable,
    GracefulShutdown,
    Message,
    OnEvent,
    Progress,
    Stage,
    StageEnd,
    ignore,
    tracked,
)
from pgcli.run.state.owner import LOCK, LOCK_SECONDS, in_use
from pgcli.run.state.record import differences, other_run
from pgcli.stores import Held, LocalStore
from pgcli.stores.files import read_json
from pgcli.stores.writing import Target, wrap_write_errors, write_json
from pgcli.text import MAX_NAMES, byte_count, count, duration, listed
from pgcli.training.answers import AnswerTask, check_answers, make_answer_task
from pgcli.training.classify import ClassifyTask, make_classify_task
from pgcli.training.contrastive import ContrastiveTask, make_contrastive_task
from pgcli.training.lora import lora_settings
from pgcli.training.options import TrainOptions, check_options
from pgcli.training.processes import ALONE, Processes
from pgcli.training.rows import (
    IMAGE_ID,
    RowErrors,
    RowKey,
    RowStore,
    TrainingRows,
    check_apart,
    check_readable,
    split_by_image,
)
from pgcli.training.run_files import METRICS, RUN_FILE, read_metrics
from pgcli.training.sources import RowReader
from pgcli.training.task import TaskInputs
from pgcli.training.trainer import CURVES, LAST, STATE, Trainer, TrainerOptions, TrainingProgress
from pgcli.version import __version__

SHOWN_UPDATES = 20  # the progress shows the mean loss of this many updates
MAX_MEASURES = 5

#: Finds the files of a model, and shows the progress of their download.
FindModel = Callable[[str, str | None], Checkpoint]
MERGED = "merged"  # the folder of --merge
#: The options that determine the weights, beside the recipe's.
FIXED = (
    *("model", "init", "loss", "probe", "epochs", "steps", "warmup", "max_grad_norm", "seed"),
    *("eval_fraction", "eval_every", "patience", "dtype", "max_pixels", "fast_decode"),
)
FIXED_OF_ANSWERS = ("method", "dropout", "quantize")


@dataclass(frozen=True)
class LearningRows:
    """The rows that were `read` from the sources and `--eval`, and the rows of each side.

    `faults` has the reasons for unusable rows.
    """

    read: Sequence[TrainingRows]
    train: TrainingRows
    evaluation: TrainingRows
    faults: Mapping[RowKey, str]


@dataclass(frozen=True)
class TrainingSummary:
    """The results of a run: its updates, its best evaluation and the unusable rows.

    `example` is one of its prompts, texts or labels.
    """

    rows: int
    steps: int
    best: Mapping[str, float]
    unusable: Mapping[RowKey, str]
    count_unusable: int
    seconds: float
    example: str
    exit_code: int

    def facts(self, folder: Path) -> list[tuple[str, str]]:
        """The summary as names and texts."""
        spent = f" in {duration(self.seconds)}" if self.seconds else ""
        facts = [
            ("model", str(folder)),
            ("rows", f"{self.rows:,}"),
            ("steps", f"{self.steps:,}{spent}"),
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
    """Train in this process or in one of several, or resume the run in the output folder.

    The first of several processes writes. Returns None for a dry run. Raises UsageError for
    conflicting options, OutputExists for the folder of another run, and the errors of reading.
    """
    check_options(options)
    folder = options.folder
    if not options.overwrite and read_json(folder / RUN_FILE) is None:
        Target(name=str(folder), kind="folder").check()
    if options.dry_run:
        if processes.is_first:
            dry_run(options, on_event, processes)
        return None
    with opened_state(folder, processes) as state, closing(RowStore(state)) as store:
        return train_rows(options, state, store, on_event, find_model, processes)


def dry_run(options: TrainOptions, on_event: OnEvent, processes: Processes) -> None:
    """Read the rows and describe the run, but write nothing.

    Raises OutputExists if the folder has another run.
    """
    with tempfile.TemporaryDirectory() as name, closing(RowStore(Path(name))) as store:
        rows = read_learning_rows(options, store, on_event)
        checkpoint = None if options.model is None else find_local(options.model, options.revision)
        record = run_record(options, rows.read, checkpoint)
        if checkpoint is None and options.model is not None:
            del record["settings"]["checkpoint"]  # unknown before its download
        check_run(options, record)
        check_images(rows, options)
        if checkpoint is not None and options.task is None:
            check_answers(checkpoint)
        inputs = TaskInputs(options, rows.train, rows.evaluation, checkpoint, processes=processes)
        on_event(FactTable([*training_facts(inputs), ("output", str(options.folder))]))


def make_task(inputs: TaskInputs) -> AnswerTask | ContrastiveTask | ClassifyTask:
    """The task of the options, with its model on the device.

    Raises UsageError for a checkpoint or labels unsuitable for the task, and if a batch has fewer
    rows than there are processes.
    """
    match inputs.options.task:
        case "contrastive":
            return make_contrastive_task(inputs)
        case "classify":
            return make_classify_task(inputs)
        case None:
            return make_answer_task(inputs)


def training_facts(inputs: TaskInputs) -> Facts:
    """The plan of a run as names and texts."""
    options, order = inputs.options, inputs.order
    steps = TrainerOptions.of(options, order.steps_per_epoch, is_evaluated=bool(inputs.evaluation))
    sides = f"{len(inputs.train):,} to train on, {len(inputs.evaluation):,} to evaluate on"
    return [
        ("task", options.task or f"answer, --method {options.method}"),
        ("model", options.model or f"new, {options.init}"),
        ("rows", sides),
        ("steps", f"{steps.steps:,}, {order.steps_per_epoch:,} per epoch"),
        ("batch", f"{order.batch_size:,} rows"),
        ("learning rate", f"{steps.learning_rate:g}, {count(steps.warmup, 'warm-up step')}"),
        ("weight decay", f"{steps.weight_decay:g}"),
        ("evaluation", f"every {steps.eval_every:,} steps" if steps.eval_every else "none"),
    ]


def check_images(rows: LearningRows, options: TrainOptions) -> None:
    """Raise NoInputError if all images to train on, or all to evaluate on, are unreadable."""
    check_readable(rows.train, "the rows to train on", options)
    if rows.evaluation:
        check_readable(rows.evaluation, "the rows to evaluate on", options)


def read_learning_rows(options: TrainOptions, store: RowStore, on_event: OnEvent) -> LearningRows:
    """The rows of a run. Raises TooManyErrors, and UsageError for images on both sides."""
    errors = RowErrors(options.error_budget)
    if options.task is not None:
        reader = RowReader(label=options.column, has_folders=options.task == "classify")
    else:
        columns = LabelColumns(options.prompt_column, options.answer_column)
        is_evaluated = bool(options.eval or options.eval_fraction)
        reader = RowReader(columns, options.prompt, on_event=on_event, keeps_truth=is_evaluated)

    def read(sources: Sequence[str]) -> TrainingRows:
        rows = TrainingRows(store)
        track = partial(tracked, on_event=on_event, task="reading rows", unit="rows")
        reader.read(sources, options.read_options, rows, track=track, errors=errors)
        reasons = {
            "without_target": f"without {reader.missing}",
            "with_error": "with an error in a result file",
        }
        for key, skipped in rows.skipped.items():
            on_event(Message(f"skipped {count(skipped, 'row')} {reasons[key]}"))
        if rows.faults:
            limit = len(rows.faults) if options.dry_run else MAX_NAMES
            names = listed(rows.faults, limit, separator=";")
            on_event(Message(f"skipped {count(len(rows.faults), 'unusable row')}: {names}"))
        return rows

    rows = read(options.sources)
    if options.task is None and not any(row.target for row in rows):
        on_event(Message("all answers are empty: the model learns to answer nothing"))
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
    earlier = {} if options.overwrite else read_json(options.folder / RUN_FILE) or {}
    result = earlier.get("result", {})
    if processes.is_first and not result.get("complete"):
        check_images(rows, options)
    if processes.is_first and processes.count > 1 and options.model is not None:
        find_model(options.model, options.revision)  # downloads it once
    processes.wait()
    checkpoint = None if options.model is None else find_model(options.model, options.revision)
    record = run_record(options, rows.read, checkpoint)
    resumes = check_run(options, record)
    inputs = TaskInputs(
        options, rows.train, rows.evaluation, checkpoint, len(rows.faults), on_event, processes
    )
    task = make_task(inputs)
    settings = TrainerOptions.of(
        options, task.order.steps_per_epoch, is_evaluated=bool(rows.evaluation)
    )
    record["steps"] = settings.steps
    if processes.is_first and not resumes:
        begin_run(options, state, record)
    processes.wait()
    trainer = Trainer(task, settings, options.folder, state, processes)
    was_complete, began = trainer.progress.is_complete, perf_counter()
    is_complete = run_trainer(trainer, on_event)
    seconds = 0.0 if was_complete else perf_counter() - began
    faults: dict[RowKey, str] = {}
    for share in processes.gather({**task.faults}):
        faults |= share
    names = [*result.get("unreadable", ()), *(key[0] for key in (*rows.faults, *faults))]
    unreadable = [*dict.fromkeys(names)]
    if processes.is_first:
        if is_complete and options.merge and checkpoint is not None:
            with wrap_write_errors(options.folder / MERGED):
                merge_adapter(checkpoint.folder, options.folder, options.folder / MERGED)
        result = {"complete": is_complete, **asdict(trainer.progress), "unreadable": unreadable}
        write_json(options.folder / RUN_FILE, record | {"result": result})
    lines = read_metrics(options.folder / METRICS)
    has_lost = bool(unreadable) or any(line.get("lost") for line in lines)
    return summary_of(rows, faults, trainer.progress, seconds, has_lost=has_lost)


def summary_of(
    rows: LearningRows,
    faults: Mapping[RowKey, str],
    progress: TrainingProgress,
    seconds: float,
    *,
    has_lost: bool,
) -> TrainingSummary:
    """The summary of a run; all rows of an unreadable image count as unusable."""
    lost = {key[1] for key in faults if len(key) == IMAGE_ID}
    count_lost = sum(row.image_key in lost for side in rows.read for row in side)
    return TrainingSummary(
        rows=len(rows.read[0]),
        steps=progress.step,
        best=progress.best,
        unusable=faults,
        count_unusable=count_lost + sum(len(key) > IMAGE_ID for key in faults),
        seconds=seconds,
        example=rows.train[0].prompt or rows.train[0].target,
        exit_code=INCOMPLETE if has_lost else 0,
    )


@contextmanager
def opened_state(folder: Path, processes: Processes) -> Iterator[Path]:
    """The state folder of the run, locked by the first process; an empty one is removed.

    Raises OutputInUse.
    """
    state = state_folder(folder)
    with ExitStack() as stack:
        if processes.is_first:
            store = LocalStore(state, create=True)
            try:
                stack.enter_context(store.lock(LOCK, timeout_seconds=LOCK_SECONDS))
            except Held:
                raise in_use(str(folder)) from None
            stack.callback(store.remove_folders)
            stack.callback(store.delete, [LOCK])
        processes.wait()
        yield state


def run_trainer(trainer: Trainer, on_event: OnEvent) -> bool:
    """Train until the end or a signal, and show progress; return whether the run is complete."""
    steps, done = trainer.options.steps, trainer.progress.step
    if trainer.progress.is_complete:
        on_event(Message(f"the run is already complete, after {count(done, 'step')}"))
    elif done:
        on_event(Message(f"resuming after {done:,} of {steps:,} steps"))
    losses = deque[float](maxlen=SHOWN_UPDATES)

    def on_update(line: Mapping[str, Any]) -> None:
        if line["loss"] is not None:
            losses.append(line["loss"])
        if line["step"]:
            on_event(Progress(line["step"], details=details(line, losses)))
        if "eval_loss" in line:
            on_event(Message(evaluation_line(line)))

    def on_signal() -> None:
        on_event(Message("stopping after this step; the same command resumes"))

    on_event(Stage("training", steps, initial=done, unit="steps"))
    try:
        with GracefulShutdown(on_signal, pipes=False) as shutdown:
            is_complete = trainer.run(should_stop=shutdown.should_stop, on_update=on_update)
    finally:
        on_event(StageEnd())
    if not is_complete:  # the signal may have reached any process
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
    """`step 100: loss 1.2; evaluation: loss 1.3, accuracy 0.7`, with the first measures."""
    names = [name for name in line if name.startswith("eval_")]
    measures = ", ".join(
        f"{name.removeprefix('eval_').replace('_', ' ')} {line[name]:.4g}"
        for name in names[:MAX_MEASURES]
    )
    loss = "" if line["loss"] is None else f"loss {line['loss']:.4g}; "
    return f"step {line['step']:,}: {loss}evaluation: {measures}"


def fixed_settings(options: TrainOptions) -> dict[str, Any]:
    """The option values that determine the weights, as in JSON."""
    values = {name: getattr(options, name) for name in FIXED}
    for name in ("loss", "epochs", "eval_every"):
        values[name] = "default" if values[name] is None else values[name]
    recipe = options.recipe._asdict()
    del recipe["betas"]
    values |= {"task": options.task_name, "column": options.column, **recipe}
    if options.task is None:
        values |= {name: getattr(options, name) for name in FIXED_OF_ANSWERS}
        values["freeze"] = [*options.freeze]
    if options.task is None and options.method == "lora":
        lora = lora_settings(options)
        values |= {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
    return values


def run_record(
    options: TrainOptions, read: Sequence[TrainingRows], checkpoint: Checkpoint | None
) -> dict[str, Any]:
    """The content of `run.json`; a run with the same `settings` resumes it.

    `read` has the rows of the sources, and with `--eval` the rows to evaluate on.
    """
    rows, held_out = read[0], read[1] if len(read) > 1 else None
    settings = fixed_settings(options) | {
        "checkpoint": None if checkpoint is None else folder_digests(checkpoint.folder),
        "adapter": options.adapter and digests([Path(options.adapter, ADAPTER_WEIGHTS)]),
        "rows": rows.digest,
        "eval_rows": None if held_out is None else held_out.digest,
    }
    return {
        "pgcli": __version__,
        "torch": torch.__version__,
        "sources": [*options.sources],
        "eval": options.eval,
        "counts": {
            "rows": len(rows),
            "eval_rows": None if held_out is None else len(held_out),
            **rows.skipped,
        },
        "settings": settings,
    }


def check_run(options: TrainOptions, record: Mapping[str, Any]) -> bool:
    """Whether the folder has a run to resume. Raises OutputExists for a run with other settings."""
    folder = options.folder
    earlier = read_json(folder / RUN_FILE)
    if earlier is None or options.overwrite:
        return False
    if changes := differences(earlier.get("settings", {}), record["settings"]):
        hint = "run the command that made it to resume it, or choose another <-o>"
        if earlier.get("result", {}).get("complete"):  # its learning rate has fallen to zero
            option = "adapter" if (folder / ADAPTER_CONFIG).exists() else "model"
            hint = f"to train it further: <--{option} {folder}> and another <-o>"
        raise other_run(
            folder, "other settings", changes, hint=f"{hint}; <--overwrite> starts over"
        )
    return True


def begin_run(options: TrainOptions, state: Path, record: Mapping[str, Any]) -> None:
    """Create the folder of a new run, and remove the files of an earlier run only."""
    folder = options.folder
    weights = ("config.json", "model.safetensors", ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    model = (*weights, *IMAGE_PROCESSOR_FILES, *TOKENIZER_FILES, GENERATION)
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file in (
            state / STATE,  # stays if a user deletes the folder
            *(folder / name for name in (RUN_FILE, METRICS, CURVES, *model)),
            *(folder / inner / name for inner in (LAST, MERGED) for name in model),
        ):
            file.unlink(missing_ok=True)
        for inner in (LAST, MERGED):
            with suppress(OSError):  # it does not exist, or has other files
                (folder / inner).rmdir()
    write_json(folder / RUN_FILE, dict(record))
