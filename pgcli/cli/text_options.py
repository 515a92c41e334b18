"""The options of text files beside images, which `--sidecar` and `export` share."""

from __future__ import annotations

from pgcli.errors import UsageError
from pgcli.views.text_files import ExistingTexts, TextOptions

EDITED = (
    "texts kept that were edited or that pgcli did not write (--overwrite-edited replaces them)"
)
NOT_RECORDED = "digests of the texts cannot be kept, so --overwrite will take them for edited: {}"


def text_options(
    prepend: str | None,
    append: str | None,
    existing: ExistingTexts | None,
    *,
    overwrite: bool,
    overwrite_edited: bool,
) -> TextOptions:
    """The options of the command line. `--overwrite` is of texts too, unless `existing` is given.

    Raises UsageError for `--overwrite-edited` with texts that are not overwritten.
    """
    if overwrite_edited and existing not in (None, "overwrite"):
        raise UsageError(
            f"--overwrite-edited has no effect with --existing {existing}",
            hint="leave one of the two out",
        )
    default: ExistingTexts = "overwrite" if overwrite or overwrite_edited else "keep"
    return TextOptions(prepend or "", append or "", existing or default, overwrite_edited)
