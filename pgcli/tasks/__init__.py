"""Tasks: caption, ask, detect, segment and ocr, and the prompts they make for each item."""

from pgcli.tasks.question import (
    MAX_NEW_TOKENS,
    Question,
    ask,
    caption,
    check_max_new_tokens,
    detect,
    ocr,
    segment,
    validate_choices,
    with_extras,
    with_region,
)
from pgcli.tasks.templates import columns, rows_per_image, with_prompts

__all__ = [
    "MAX_NEW_TOKENS",
    "Question",
    "ask",
    "caption",
    "check_max_new_tokens",
    "columns",
    "detect",
    "ocr",
    "rows_per_image",
    "segment",
    "validate_choices",
    "with_extras",
    "with_prompts",
    "with_region",
]
