"""`run.json` of a training run: its settings, by which it is resumed, and its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from pgcli import __version__
from pgcli.checkpoints.files import ADAPTER_CONFIG, digests, folder_digests
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.weight_files import (
    ADAPTER_WEIGHTS,
    GENERATION,
    IMAGE_PROCESSOR_FILES,
    TOKENIZER_FILES,
)
from pgcli.errors import OutputExists
from pgcli.pipeline.state.record import differences
from pgcli.stores.files import read_json
from pgcli.stores.writing import wrap_write_errors, write_json
from pgcli.training.metrics_file import METRICS
from pgcli.training.options import TrainOptions
from pgcli.training.rows import TrainingRows
from pgcli.training.status import RUN
from pgcli.training.trainer import CURVES, LAST, STATE

MERGED = "merged"  # the folder of --merge


def run_record(
    options: TrainOptions, read: Sequence[TrainingRows], checkpoint: Checkpoint | None
) -> dict[str, Any]:
    """What `run.json` says; a run is resumed by one of the same `settings`.

    `read` are the rows of the sources, and those of `--eval`.
    """
    rows, held_out = read[0], read[1] if len(read) > 1 else None
    fixed = options.fixed | {
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
            **rows.left_out,
        },
        "settings": fixed,
    }


def check_run(options: TrainOptions, record: Mapping[str, Any]) -> bool:
    """Whether the folder has a run to resume. Raises OutputExists if it has other settings."""
    folder = options.folder
    earlier = read_json(folder / RUN)
    if earlier is None or options.overwrite:
        return False
    if changes := differences(earlier.get("settings", {}), record["settings"]):
        hint = "the command that made it resumes it; another <-o> leaves it alone; "
        hint += "<--overwrite> begins again"
        if earlier.get("result", {}).get("complete"):  # its learning rate has fallen to zero
            option = "adapter" if (folder / ADAPTER_CONFIG).exists() else "model"
            hint = f"to train it further: <--{option} {folder}> and another <-o>; "
            hint += "<--overwrite> begins again"
        raise OutputExists(
            f"{folder} belongs to a run with other settings: {'; '.join(changes)}", hint=hint
        )
    return True


def begin_run(options: TrainOptions, state: Path, record: Mapping[str, Any]) -> None:
    """Create the folder of a new run, without what an earlier one left there."""
    folder = options.folder
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        remove_run(folder, state)  # its state is left where a user has deleted the folder
    write_json(folder / RUN, dict(record))


def remove_run(folder: Path, state: Path) -> None:
    """Remove the files of an earlier run, and nothing else. Raises OSError."""
    weights = ("config.json", "model.safetensors", ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    model = (*weights, *IMAGE_PROCESSOR_FILES, *TOKENIZER_FILES, GENERATION)
    for file in (
        state / STATE,
        *(folder / name for name in (RUN, METRICS, CURVES, *model)),
        *(folder / inner / name for inner in (LAST, MERGED) for name in model),
    ):
        file.unlink(missing_ok=True)
    for inner in (LAST, MERGED):
        with suppress(OSError):  # it is not there, or has files of others
            (folder / inner).rmdir()
