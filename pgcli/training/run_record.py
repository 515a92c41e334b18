"""`run.json` of a training run: the settings that a resumed run must have, and its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
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
from pgcli.checkpoints.find import Checkpoint
from pgcli.run.state.record import differences, other_run
from pgcli.stores.files import read_json
from pgcli.stores.writing import wrap_write_errors, write_json
from pgcli.training.lora import lora_settings
from pgcli.training.metrics_file import METRICS
from pgcli.training.options import TrainOptions
from pgcli.training.rows import TrainingRows
from pgcli.training.status import RUN_FILE
from pgcli.training.trainer import CURVES, LAST, STATE
from pgcli.version import __version__

MERGED = "merged"  # the folder of --merge
#: The options that determine the weights, beside the recipe's.
FIXED = (
    *("model", "init", "loss", "probe", "epochs", "steps", "warmup", "max_grad_norm", "seed"),
    *("eval_fraction", "eval_every", "patience", "dtype", "max_pixels", "fast_decode"),
)
FIXED_OF_ANSWERS = ("method", "dropout", "quantize")


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
    """Create the folder of a new run, and remove the files of an earlier run."""
    folder = options.folder
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_run(folder, state)  # the state stays if a user deletes the folder
    write_json(folder / RUN_FILE, dict(record))


def remove_run(folder: Path, state: Path) -> None:
    """Remove the files of an earlier run only. Raises OSError."""
    weights = ("config.json", "model.safetensors", ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    model = (*weights, *IMAGE_PROCESSOR_FILES, *TOKENIZER_FILES, GENERATION)
    for file in (
        state / STATE,
        *(folder / name for name in (RUN_FILE, METRICS, CURVES, *model)),
        *(folder / inner / name for inner in (LAST, MERGED) for name in model),
    ):
        file.unlink(missing_ok=True)
    for inner in (LAST, MERGED):
        with suppress(OSError):  # it does not exist, or has other files
            (folder / inner).rmdir()
