"""Counts and times of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pgcli.records import Answer


@dataclass
class Tally:
    """The counts of a run so far.

    `rows_before` were saved by earlier runs, with `errors_before` by code. The model waited
    `waited_seconds` of the `seconds` of answering for images. `truncated` rows have a text longer
    than the model's input, and the limit of tokens `cut` answers. `hits` of the `prompts` reused
    the features of an image.
    """

    rows: int = 0
    rows_before: int = 0
    images: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    errors_before: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    truncated: int = 0
    cut: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    vision_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    hits: int = 0
    prompts: int = 0
    last_errors: int = 0  # failed rows since the last answered row
    last_error: str = ""  # its description

    def count(self, row: Answer) -> None:
        """Add a saved row."""
        if row.error is None:
            self.last_errors = 0
        else:
            self.errors[row.error] += 1
            self.last_error = f"{row.id}: {row.error}: {row.error_message}"
            self.last_errors += 1
        self.rows += 1
        self.tokens += row.tokens or 0
        self.truncated += bool(row.truncated)
        self.cut += row.finish == "length"
        self.vision_ms += row.vision_ms or 0.0
        self.prefill_ms += row.prefill_ms or 0.0
        self.decode_ms += row.decode_ms or 0.0

    @property
    def counts(self) -> tuple[float, ...]:
        """Plain values in the order of ADDED, and the last errors, for another process to add."""
        return *(getattr(self, name) for name in ADDED), self.last_errors

    def add(self, counts: Sequence[float], errors: Sequence[Error]) -> None:
        """Add the counts of another process."""
        self.last_errors = int(counts[-1]) + (self.last_errors if len(errors) == counts[0] else 0)
        for code, self.last_error in errors:
            self.errors[code] += 1
        for name, value in zip(ADDED, counts, strict=False):
            setattr(self, name, getattr(self, name) + value)

    @property
    def all_errors(self) -> Counter[str]:
        """The failed rows of the output, by code."""
        return self.errors + self.errors_before


ADDED = (
    *("rows", "images", "tokens", "truncated", "cut", "waited_seconds"),
    *("vision_ms", "prefill_ms", "decode_ms", "hits", "prompts"),
)
#: The code of a failed row, and its description.
Error: TypeAlias = tuple[str, str]
