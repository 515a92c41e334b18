"""What can go wrong in a way the user can fix, drawn as a tree.

PgcliError                 1   never raised itself
├── UsageError             2   an option, a source or a prompt that cannot be meant
│   └── ManifestError      2   a manifest that cannot be read as one
├── NoInputError           4   nothing to do: no picture matched
├── Difference             5   what was compared is not the same
├── ModelUnavailable      10   gated, offline or unknown model
├── OutputInUse           12   another run writes the output
├── OutputExists          13   the output is there already, of other settings or another input
├── OutputFailed          14   the output could not be written
├── TooManyErrors         15   stopped because of error rows
├── InvalidCheckpoint     16   model files invalid, unsafe or not understood
└── NoUsableDevice        17   the device, its type or its memory does not serve

The number is the process's exit code. Whatever is wrong with one picture is not here: it is a
`records.Fault`, data in that picture's row.
"""

from __future__ import annotations


class PgcliError(Exception):
    """A problem with a remedy: the message says what happened, `hint` says what to do."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message)
        self.hint = hint


class UsageError(PgcliError):
    exit_code = 2


class ManifestError(UsageError):
    """The manifest is broken as a whole; one unreadable picture in it is an error row instead."""

    def __init__(
        self, message: str, *, hint: str = "mend the manifest there, or leave the row out"
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


class TooManyErrors(PgcliError):
    exit_code = 15


class InvalidCheckpoint(PgcliError):
    exit_code = 16

    def __init__(
        self,
        message: str,
        *,
        hint: str = "download it again if it is damaged; else name another: PaliGemma and "
        "PaliGemma 2 are read, and LoRA adapters of them",
    ):
        super().__init__(message, hint=hint)


class NoUsableDevice(PgcliError):
    exit_code = 17
