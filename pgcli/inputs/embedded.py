"""Images in texts: base64 and `data:` URLs, which tools write into tables."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote_to_bytes

from pgcli.inputs.paths import MAX_PATH

#: The first bytes of images; no path and no line of JSON begins with them.
IMAGE_BYTES = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|BM....\0\0\0\0|II\*\0|MM\0\*"
    rb"|....ftyp(?:avif|avis|mif1)|P[1-6]\s(?:#.*\n)*\s*\d+\s+\d+\s",
    re.DOTALL,
)
#: The start of a text that may be the base64 of an image; the decoded bytes decide.
_BASE64_HEAD = re.compile(r"\s*[A-Za-z0-9+/_\-][A-Za-z0-9+/_\-\s]{39,}")
HEAD_CHARACTERS = 160
MAX_NAME = 255  # of the file systems of Linux and macOS
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_DATA = re.compile(r"data:([^,]*),(.*)", re.DOTALL | re.IGNORECASE)


def image_in_text(text: str) -> bytes | None:
    """The bytes of an image in base64 or a `data:` URL; None for any other text.

    Text of base64 characters is an image if it decodes to the first bytes of one, or is too long
    for a path. Raises ValueError for an invalid `data:` URL.
    """
    if text[:5].lower() == "data:":
        match = _DATA.fullmatch(text)
        if match is None:
            raise ValueError("there is no comma before the data")
        data = unquote_to_bytes(match[2])
        is_base64 = match[1].replace(" ", "").lower().endswith(";base64")
        return decode_base64(data.decode("ascii", "replace")) if is_base64 else data
    head = _BASE64_HEAD.match(text, 0, HEAD_CHARACTERS)
    if head is None:
        return None
    is_path = len(text) <= MAX_PATH or max(map(len, text.split("/"))) <= MAX_NAME
    try:
        if IMAGE_BYTES.match(decode_base64(head[0])) or not is_path:
            return decode_base64(text)
    except ValueError:
        pass  # other characters
    return None


def image_in_bytes(data: bytes) -> bytes:
    """The bytes; of an image as base64 or as a `data:` URL, the decoded bytes.

    Raises ValueError for an invalid `data:` URL.
    """
    head = data[:HEAD_CHARACTERS]
    if not head.isascii() or IMAGE_BYTES.match(head):
        return data
    text = data.decode("ascii", "replace")
    decoded = image_in_text(text)
    is_image = decoded is not None and (text[:5].lower() == "data:" or IMAGE_BYTES.match(decoded))
    return decoded if decoded is not None and is_image else data


def is_path(value: object) -> bool:
    """Whether the value is text, but not an image in base64."""
    try:
        return isinstance(value, str) and image_in_text(value) is None
    except ValueError:
        return False


def decode_base64(text: str) -> bytes:
    """The bytes of base64 in either alphabet, with or without line breaks and padding.

    An incomplete last byte is dropped. Raises ValueError.
    """
    characters = "".join(text.split()).rstrip("=").translate(_STANDARD_ALPHABET)
    if len(characters) > 1 and len(characters) % 4 == 1:
        characters = characters[:-1]
    padding = "=" * (-len(characters) % 4)
    return base64.b64decode(characters + padding, validate=True)
