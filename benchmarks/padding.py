"""How much padding rows in order of length save: made-up lengths of answers, batches in parts.

    python benchmarks/padding.py

prints for each kind of text the share of padding among text tokens, and the share of all slots that
is saved with 256 image tokens in a row.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pgcli.training.data import RowOrder

ROWS, IMAGE_TOKENS = 20_000, 256
PARTS = ((32, 4), (32, 8), (256, 8))  # rows of an update, and of a micro-batch


def words(mean: float) -> int:
    return 8 + int(random.expovariate(1 / mean))


LENGTHS: dict[str, Callable[[], int]] = {
    "answers of a few words": lambda: words(2.5),
    "captions": lambda: 12 + max(0, int(random.gauss(12, 4))),
    "both, and one to eight boxes": lambda: random.choice(
        [words(2.5), 24, 10 + 5 * random.randint(1, 8)]
    ),
    "text to read": lambda: 5 + int(random.lognormvariate(4, 0.9)),
}


def slots(order: RowOrder, lengths: Sequence[int], part: int) -> int:
    """The text slots of an epoch."""
    total = 0
    for batch in order.batches(0, order.steps_per_epoch):
        for start in range(0, len(batch), part):
            rows = batch[start : start + part]
            total += len(rows) * max(lengths[row] for row in rows)
    return total


def main() -> None:
    random.seed(0)
    for name, draw in LENGTHS.items():
        lengths = [draw() for _ in range(ROWS)]
        for batch, part in PARTS:
            used = sum(lengths)
            random_slots = slots(RowOrder(ROWS, batch, 0), lengths, part)
            sorted_slots = slots(RowOrder(ROWS, batch, 0, lengths), lengths, part)
            saved = (random_slots - sorted_slots) / (random_slots + ROWS * IMAGE_TOKENS)
            print(
                f"{name}, {batch} rows in parts of {part}: padding {1 - used / random_slots:.0%} "
                f"-> {1 - used / sorted_slots:.0%} of text slots, {saved:.1%} of all slots saved"
            )


if __name__ == "__main__":
    main()
