"""Files that rows depend on, as settings of a run."""

from __future__ import annotations

from pathlib import Path

from pgcli.checkpoints.file_digests import digests
from pgcli.checkpoints.find import DIGEST_LENGTH
from pgcli.printable import encodable


def file_settings(name: str | None, within: str = "") -> dict[str, str | None] | None:
    """The name of a file, or of one within a folder, as the user gave it, and its digest."""
    if name is None:
        return None
    file = Path(name).expanduser() / within
    sha256 = digests([file])[0][:DIGEST_LENGTH] if file.is_file() else None
    return {"name": encodable(name), "sha256": sha256}
