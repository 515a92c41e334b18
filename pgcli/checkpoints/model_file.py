"""Opens a file of a checkpoint; the error says why it cannot be read."""

from __future__ import annotations

from io import BufferedReader
from pathlib import Path

from pgcli.errors import InvalidCheckpoint
from pgcli.stores.files import NotRegularFileError, open_regular


def open_model_file(file: Path) -> BufferedReader:
    """The file, opened for reading. Raises InvalidCheckpoint with the reason and the remedy."""
    try:
        return open_regular(file)
    except FileNotFoundError as error:
        raise InvalidCheckpoint(f"{file} is missing", hint="download the model again") from error
    except NotRegularFileError as error:
        raise InvalidCheckpoint(
            f"{file} is not a regular file", hint="replace it by the file, or remove it"
        ) from error
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: OSError) -> InvalidCheckpoint:
    """The error of a file that the system does not let us read; its contents may be intact."""
    hint = "check the disk"
    if isinstance(error, PermissionError):
        hint = f"change its permissions, or those of its folder: ls -la {file.parent}"
    return InvalidCheckpoint(f"{file} cannot be read: {error.strerror or error}", hint=hint)


def descriptor_path(stream: BufferedReader) -> str:
    """A path to the open file, for libraries that open files by name."""
    return f"/dev/fd/{stream.fileno()}"
