"""Errors that the user can fix, and their exit codes.

PgcliError                 1   the base class, not raised itself
├── UsageError             2   an invalid option, source or prompt
│   └── ManifestError      2   a manifest that cannot be read
├── NoInputError           4   no image matched
├── Difference             5   a comparison found a difference
├── ModelUnavailable      10   gated, offline or unknown model
├── OutputInUse           12   another run writes the output
├── OutputExists          13   the output exists, or has other settings or another input
├── OutputFailed          14   the output could not be written
├── TooManyErrors         15   too many error rows
├── TrainingDiverged      15   a loss or a gradient is not finite
├── InvalidCheckpoint     16   invalid, unsafe or unsupported model files
└── NoUsableDevice        17   the device, its dtypes or its memory do not suffice

The number is the exit code of the process. An error of a single image is not an exception but a
`records.Fault`, which its row records.
"""

from __future__ import annotations

#: The exit code of a command that did its work, but for rows with errors.
INCOMPLETE = 3


class PgcliError(Exception):
    """An error whose message says what happened and whose `hint` says what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message)
        self.hint = hint


class UsageError(PgcliError):
    exit_code = 2


class ManifestError(UsageError):
    """The manifest cannot be read; an image in it that cannot be read is an error row instead."""

    def __init__(
        self, message: str, *, hint: str = "correct the manifest there, or remove the row"
    ):
        super().__init__(message, hint=hint)


class NoInputError(PgcliError):
    exit_code = 4


class Difference(PgcliError):
    exit_code = 5


class ModelUnavailable(PgcliError):
    exit_code = 10


class OutputInUse(PgcliError):
    exit_code = 12


class OutputExists(PgcliError):
    exit_code = 13


class OutputFailed(PgcliError):
    exit_code = 14


class OutputChanged(OutputFailed):
    """Another program changed the output: how many of its rows are left is not known."""


class SourceUnavailable(PgcliError):
    exit_code = 14


class TooManyErrors(PgcliError):
    exit_code = 15


class TrainingDiverged(PgcliError):
    exit_code = 15


class InvalidCheckpoint(PgcliError):
    exit_code = 16

    def __init__(
        self,
        message: str,
        *,
        hint: str = "download it again if it is damaged, or name another: PaliGemma, PaliGemma 2 "
        "and LoRA adapters of them are supported, and SigLIP, CLIP and ViT for embeddings",
    ):
        super().__init__(message, hint=hint)


class NoUsableDevice(PgcliError):
    exit_code = 17
