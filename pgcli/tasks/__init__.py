"""Tasks: the question about each item, and the prompts of caption, ask and others."""

from pgcli.tasks.embedding import (
    AnyQuestion,
    EmbeddingQuestion,
    classify,
    embed,
    score,
)
from pgcli.tasks.question import (
    MAX_NEW_TOKENS,
    Question,
    ask,
    caption,
    check_max_new_tokens,
    detect,
    ocr,
    segment,
    with_region,
)
from pgcli.tasks.templates import rows_per_image, template_columns, with_prompts

__all__ = [
    "MAX_NEW_TOKENS",
    "AnyQuestion",
    "EmbeddingQuestion",
    "Question",
    "ask",
    "caption",
    "check_max_new_tokens",
    "classify",
    "detect",
    "embed",
    "ocr",
    "rows_per_image",
    "score",
    "segment",
    "template_columns",
    "with_prompts",
    "with_region",
]
