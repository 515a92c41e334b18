"""The folder that FiftyOne imports as a COCODetectionDataset: data/ and labels.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pgcli.views.exports.coco import document
from pgcli.views.exports.entry import Entry, Format, Wanted, unhidden
from pgcli.views.exports.image_files import placed


def write(target: Path, entries: Iterable[Entry], wanted: Wanted) -> None:
    """Fill the folder. A picture that cannot be read is left out with its boxes."""

    def there() -> Iterator[tuple[Entry, str]]:
        for entry in entries:
            if placed(target / "data", entry, wanted):
                yield entry, entry.name

    (target / "data").mkdir()
    document(target / "labels.json", there(), wanted)


FIFTYONE = Format(
    write,
    is_folder=True,
    holds_boxes=True,
    opens=True,
    tidied=unhidden,
    takes=frozenset({"labels", "pictures"}),
)
