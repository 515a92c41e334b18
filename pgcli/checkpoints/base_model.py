"""Whether an adapter was made for the weights that it is merged into."""

from __future__ import annotations

import hashlib
import warnings
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path, PurePosixPath

import torch

from pgcli.checkpoints.families.paligemma import NAMES
from pgcli.checkpoints.files import ADAPTER_CONFIG, read_object
from pgcli.checkpoints.find import Checkpoint, find_local
from pgcli.checkpoints.safetensors_files import check_dtype, read_metadata, read_tensor
from pgcli.checkpoints.weight_files import ADAPTER_WEIGHTS
from pgcli.checkpoints.weights import HEAD, find_tensors
from pgcli.errors import PgcliError

#: The key of the fingerprint in the metadata of an adapter's weights.
FINGERPRINT = "base_fingerprint"
SAMPLED_VALUES = 64
FINGERPRINT_LENGTH = 16


def fingerprint_of(folder: Path) -> str:
    """A digest of the first values of each tensor of a checkpoint, in bfloat16.

    It does not depend on the folder, shards, tensor names or floating-point type. It ignores the
    LM head, which checkpoints with tied weights may or may not store. Raises InvalidCheckpoint.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(find_tensors(folder, NAMES).items()):
        check_dtype(tensor)
        size = prod(tensor.shape)
        if name == HEAD or not size:
            continue
        count = min(SAMPLED_VALUES, size)
        values = read_tensor(replace(tensor, shape=(count,), nbytes=count * tensor.nbytes // size))
        digest.update(name.encode() + values.bfloat16().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:FINGERPRINT_LENGTH]


def warn_of_another_base(adapter: Checkpoint, model: Checkpoint) -> None:
    """Warn, with both names, of an adapter that was made for other weights than the model's.

    `pgcli train` writes the fingerprint of the weights into the adapter. Without it, the model that
    `adapter_config.json` names is compared if it is on this machine, or else its name.
    """
    values = read_object(adapter.folder / ADAPTER_CONFIG)
    base, revision = values.get("base_model_name_or_path"), values.get("revision")
    base = base if isinstance(base, str) else ""
    expected = read_metadata(adapter.folder / ADAPTER_WEIGHTS).get(FINGERPRINT)
    if expected is None and base not in ("", model.name):
        expected = _local_fingerprint(base, revision if isinstance(revision, str) else None)
    if expected is not None:
        if expected != fingerprint_of(model.folder):
            warnings.warn(
                f"adapter {adapter.name} was trained on {base or 'another model'}, but "
                f"{model.name} has different weights; answers may be wrong",
                stacklevel=1,
            )
    elif PurePosixPath(base).name not in ("", PurePosixPath(model.name).name):
        warnings.warn(
            f"adapter {adapter.name} was trained on {base}, which is not on this machine, so pgcli "
            f"cannot check that {model.name} has the same weights",
            stacklevel=1,
        )


def _local_fingerprint(name: str, revision: str | None) -> str | None:
    """The fingerprint of a model, if it is on this machine."""
    with suppress(PgcliError):
        checkpoint = find_local(name, revision)
        return None if checkpoint is None else fingerprint_of(checkpoint.folder)
    return None
