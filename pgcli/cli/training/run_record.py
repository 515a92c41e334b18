"""`run.json` of a training run: its settings, by which it is resumed, and its folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli import __version__
from pgcli.cli.training.inputs import LearningRows
from pgcli.cli.training.options import TrainOptions
from pgcli.errors import OutputExists
from pgcli.run.state.record import differences
from pgcli.stores.files import read_json
from pgcli.stores.writing import wrap_write_errors, write_json

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint

OPEN = ("loss", "batch_size", "learning_rate", "weight_decay", "eval_every", "epochs")
RUN, MERGED = "run.json", "merged"  # the latter is a folder, of --merge


def run_record(
    command: TrainOptions, rows: LearningRows, checkpoint: Checkpoint | None
) -> dict[str, Any]:
    """What `run.json` says; a run is resumed by one of the same `settings`."""
    import torch

    from pgcli.checkpoints.file_digests import folder_digests

    held_out = rows.held_out
    fixed = command.settings.values | {
        "checkpoint": None if checkpoint is None else folder_digests(checkpoint.folder),
        "dtype": command.dtype,
        "rows": rows.given.digest,
        "eval_rows": None if held_out is None else held_out.digest,
        "max_pixels": command.max_pixels,
        "fast_decode": command.fast_decode,
    }
    return {
        "pgcli": __version__,
        "torch": torch.__version__,
        "sources": [*command.sources],
        "eval": command.eval,
        "counts": {
            "rows": len(rows.given),
            "eval_rows": None if held_out is None else len(held_out),
            **rows.given.left_out,
        },
        "settings": fixed,
    }


def check_run(command: TrainOptions, record: Mapping[str, Any]) -> bool:
    """Whether the folder has a run to resume. Raises OutputExists if it has other settings."""
    folder = command.folder
    earlier = read_json(folder / RUN)
    if earlier is None or command.overwrite:
        return False
    settings = (with_defaults(one) for one in (earlier.get("settings", {}), record["settings"]))
    if changes := differences(*settings):
        raise OutputExists(
            f"{folder} belongs to a run with other settings: {'; '.join(changes)}",
            hint="the command that made it resumes it; another -o leaves it alone; "
            "--overwrite begins again",
        )
    return True


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the defaults of adapters, and `default` for those that tasks differ in."""
    from pgcli.training.lora import LoraSettings

    lora = LoraSettings()
    known = {"rank": lora.rank, "alpha": lora.lora_alpha, "targets": lora.targets}
    defaults = dict.fromkeys(OPEN, "default") | known
    return {
        name: defaults.get(name) if value is None else value for name, value in settings.items()
    }


def begin_run(command: TrainOptions, state: Path, record: Mapping[str, Any]) -> None:
    """Create the folder of a new run, without what an earlier one left there."""
    folder = command.folder
    with wrap_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if command.overwrite:
            remove_run(folder, state)
    write_json(folder / RUN, dict(record))


def remove_run(folder: Path, state: Path) -> None:
    """Remove the files of an earlier run, and nothing else. Raises OSError."""
    from pgcli.checkpoints import adapter_file
    from pgcli.checkpoints.generation_config import GENERATION
    from pgcli.checkpoints.json_file import ADAPTER_CONFIG
    from pgcli.checkpoints.processor_files import IMAGE_PROCESSOR_FILES, TOKENIZER_FILES
    from pgcli.training.metrics_file import METRICS
    from pgcli.training.trainer import CURVES, LAST, SMALLER, STATE

    weights = ("config.json", "model.safetensors", ADAPTER_CONFIG, adapter_file.WEIGHTS)
    model = (*weights, *IMAGE_PROCESSOR_FILES, *TOKENIZER_FILES, GENERATION)
    for file in (
        state / STATE,
        state / SMALLER,
        *(folder / name for name in (RUN, METRICS, CURVES, *model)),
        *(folder / inner / name for inner in (LAST, MERGED) for name in model),
    ):
        file.unlink(missing_ok=True)
    for inner in (LAST, MERGED):
        with suppress(OSError):  # it is not there, or has files of others
            (folder / inner).rmdir()
