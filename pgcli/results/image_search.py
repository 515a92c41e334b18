"""Where the images of rows are searched for, and why one cannot be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgcli.inputs.readers import READERS
from pgcli.records import Fault
from pgcli.results.missing_images import MissingImages
from pgcli.run.progress.events import Message, OnEvent, ignore
from pgcli.stores import Reader

if TYPE_CHECKING:
    from pgcli.inputs import Inventory

#: Endings of files that hold images, such as archives and tables.
CONTAINER_ENDINGS = tuple(READERS)
NOT_FOUND = Fault("missing", "The image does not exist any more.")
INPUT_CHANGED = Fault("missing", "The run's input changed: another image has this index now.")
INPUT_NOT_READABLE = Fault("missing", "The image is in the run's input, which cannot be reopened.")
NO_RUN_RECORD = Fault(
    "missing",
    "The image is in an archive or a table, and there is no record of the run of these rows.",
)

#: Reads the input of a run again; None if it was standard input.
Reopen = Callable[[], "Inventory | None"]


@dataclass(frozen=True)
class ImageSearch:
    """How the images of rows are found.

    `images` is the only folder to search, in place of the paths of the run. `url_reader` fetches
    addresses. `reopen` reads the input of rows that have no record of their run. Problems that
    concern many images go to `on_event`.
    """

    on_event: OnEvent = ignore
    images: str | None = None
    url_reader: Reader | None = None
    reopen: Reopen | None = None

    def say(self, message: str, hint: str = "") -> None:
        """Tell the user something that concerns many images."""
        self.on_event(Message(message, hint))

    def hint(self, missing: MissingImages, moved: str = "") -> str:
        """The options that would find the missing images; `moved` is the hint for moved files."""
        hints = []
        if self.url_reader is None and any(one.code == "url_blocked" for one in missing.faults):
            hints.append("--allow-urls fetches those at addresses")
        if moved and NOT_FOUND in missing.faults:
            hints.append(moved)
        return "; ".join(hints)


def is_in_container(image: str) -> bool:
    """Whether a row's image is named by the archive or table that contains it."""
    folders = image.lower().split("/")[:-1]
    is_member = any(folder.endswith(CONTAINER_ENDINGS) for folder in folders)
    return is_member or image.lower().endswith(CONTAINER_ENDINGS)
