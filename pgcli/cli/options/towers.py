"""The options that commands of two towers share."""

from __future__ import annotations

from typing import Annotated

from pgcli.cli.option import option

RawText = Annotated[
    bool,
    option(
        "Texts",
        "--raw-text",
        help="Leave texts as they are where the model was trained on lower case and no "
        "punctuation.",
    ),
]
