"""A row that is trained on: an image, and a text, a label or an answer."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.records import Item

#: The id and the `image_key` of rows, and for a single row also its prompt and target.
RowKey = tuple[str, ...]
IMAGE_ID = 2  # values of a key that is of all rows of an image


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """An image and what is learned of it: its text, its label, or the answer to its `prompt`.

    `image_key` is equal for rows of the same file or of the same bytes. Bytes from a table or a
    compressed archive are not held here: they are `bytes_at`, start and size, in the store.
    """

    item: Item
    target: str
    image_key: str
    bytes_at: tuple[int, int] | None = None
    prompt: str = ""

    @property
    def image_id(self) -> RowKey:
        """What the image's fault is known by: ids of several sources may be equal."""
        return self.item.id, self.image_key
