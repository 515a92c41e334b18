"""The folder of temporary files, which PyTorch needs too, where the file system is read-only."""

from __future__ import annotations

import os

from pgcli.errors import OutputFailed

#: Where Python looks for a folder, and one in memory that containers have.
USUAL, IN_MEMORY = ("/tmp", "/var/tmp", "/usr/tmp"), "/dev/shm"
#: What Python says where none of them can be written.
NO_FOLDER = "No usable temporary directory found"


def choose_temporary_folder() -> None:
    """Use the folder in memory if no usual one is writable, also in processes started later."""
    named = any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    if not named and not any(map(is_writable, USUAL)) and is_writable(IN_MEMORY):
        os.environ["TMPDIR"] = IN_MEMORY


def is_writable(folder: str) -> bool:
    """Whether files can be made in the folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def no_temporary_folder() -> OutputFailed:
    """The error where no folder of temporary files can be written."""
    return OutputFailed(
        "no folder for temporary files can be written",
        hint="export TMPDIR=DIR; in a container mount one: docker run --tmpfs /tmp",
    )
