"""The options of the panel Boxes: which boxes rows, pages and exports have."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pgcli.cli.options.shared import number_option

_number = partial(number_option, "Boxes", least=0.0, most=1.0)

MinScore = Annotated[
    float | None, _number("--min-score", help="Leave out boxes with a score below this.")
]
MinConfidence = Annotated[
    float | None,
    _number("--min-confidence", help="Leave out boxes with a confidence below this."),
]
Nms = Annotated[
    float | None,
    _number(
        "--nms",
        metavar="IOU",
        help="Of boxes with the same label that overlap by more than this, keep the most "
        "confident.",
    ),
]
