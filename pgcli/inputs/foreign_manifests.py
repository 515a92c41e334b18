"""Recognises manifests in foreign formats, and says how to convert them."""

from __future__ import annotations

import codecs
import json
import re
import shlex
from pathlib import PurePath

from pgcli.errors import ManifestError
from pgcli.foreign_text import LFS_HINT, LFS_MESSAGE, is_lfs_pointer
from pgcli.inputs.readers import InputFile
from pgcli.stores.urls import url_scheme

HEAD_BYTES = 2**16
#: Other encodings by the first bytes of a text: byte order marks, or ASCII without one.
ENCODINGS = {
    "UTF-32": re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff", re.DOTALL),
    "UTF-16": re.compile(rb"\xff\xfe|\xfe\xff"),
    "UTF-16LE": re.compile(rb"(?:[\t\n\r -~]\0){3}"),
    "UTF-16BE": re.compile(rb"(?:\0[\t\n\r -~]){3}"),
}
#: Each turn of LLaVA's conversations as a prompt and an answer; rows of one image have no id.
LLAVA = (
    "select(.image) | .image as $image | .conversations | range(0; length; 2) as $turn | "
    r'{image: $image, prefix: (.[$turn].value | sub("\\s*<image>\\s*"; "")), '
    "suffix: .[$turn + 1].value}"
)
#: The first bytes of binary formats, and their names.
NO_TEXT = re.compile(
    rb"(?P<gzip>\x1f\x8b)|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<xz>\xfd7zXZ\0)|(?P<Zstandard>\x28\xb5\x2f\xfd)"
    rb"|(?P<ZIP>PK\x03\x04)|(?P<tar>.{257}ustar)|(?P<Parquet>PAR1\x15)|(?P<Arrow>ARROW1\0\0)"
    rb"|(?P<SQLite>SQLite format 3\0)",
    re.DOTALL,
)
_CONVERSATIONS = re.compile(rb'"conversations"\s*:')
_COCO = re.compile(rb'"(?:images|annotations|categories)"\s*:\s*\[')
#: A first line that ends within an object, and one with an object and a comma.
_OPEN_OBJECT = re.compile(rb"\{(?:[^\n]*[{\[,])?[ \t\r]*\n")
_OBJECT_AND_COMMA = re.compile(rb"(\{[^\n]*\})[ \t]*,[ \t\r]*\n")
#: Keys of tasks of Label Studio, also of its smaller exports.
_TASKS = re.compile(rb'"(?:annotations|predictions|data|annotator|annotation_id)"\s*:')


def read_head(file: InputFile) -> bytes:
    """The first bytes of a file without byte order marks; empty for an unreadable file."""
    try:
        with file.open() as opened:
            head = opened.read(HEAD_BYTES)
    except OSError:
        return b""
    return head.removeprefix(codecs.BOM_UTF8).lstrip()


def foreign_manifest(name: str, head: bytes, file: str = "") -> ManifestError | None:
    """The error for a file in a foreign format that begins with `head`; None for any other file.

    Hints call the file `file`, by default its name, or FILE for a URL.
    """
    file = file or shell_name(name)
    if is_lfs_pointer(head):
        return ManifestError(f"{name} {LFS_MESSAGE}", hint=LFS_HINT)
    if encoding := encoding_of(head):
        command = f"iconv -f {encoding} -t UTF-8 {shlex.quote(file)}"
        return ManifestError(f"{name} is {encoding}, not UTF-8", hint=f"convert it: {command}")
    if match := NO_TEXT.match(head):
        message = f"{name} is a {match.lastgroup} file, not a manifest of lines"
        hint = "name .parquet, .tar and .tar.gz files by these endings; unpack others"
        return ManifestError(message, hint=hint)
    if b"\r" in head and b"\n" not in head:
        message = f"{name} ends its lines with carriage returns, not with line feeds"
        command = written(f"tr '\\r' '\\n' < {shlex.quote(file)}", file, PurePath(file).suffix)
        return ManifestError(message, hint=f"convert it: {command}")
    is_array = head.startswith(b"[")
    if has_conversations(head):
        program = f".[] | {LLAVA}" if is_array else LLAVA
        message = f"{name} has LLaVA conversations, which pgcli does not read"
        return ManifestError(message, hint=f"convert it: {jq(program, file)}")
    if is_array:
        message = f"{name} is one JSON array, not a JSON object on each line"
        return ManifestError(message, hint=f"convert it: {jq('.[]', file)}")
    if head.startswith(b"{") and _COCO.search(head):
        message = f"{name} has COCO annotations and is not a manifest"
        hint = f"convert it: pgcli import {shlex.quote(file)} --from coco -o rows.jsonl"
        return ManifestError(message, hint=hint)
    if (match := _OBJECT_AND_COMMA.match(head)) and is_json(match[1]):
        message = f"{name} has a comma after the object on each line"
        command = written(f"sed 's/,[[:space:]]*$//' {shlex.quote(file)}", file)
        return ManifestError(message, hint=f"remove them: {command}")
    if _OPEN_OBJECT.match(head):
        message = f"{name} has JSON over several lines, not a JSON object on each line"
        return ManifestError(message, hint=f"convert it: {jq('.', file)}")
    return None


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text that begins with `head`, if it is not UTF-8."""
    return next((name for name, start in ENCODINGS.items() if start.match(head)), None)


def is_foreign(head: bytes) -> bool:
    """Whether a file with these first bytes has no lines of UTF-8."""
    return NO_TEXT.match(head) is not None or encoding_of(head) is not None


def is_json(text: bytes) -> bool:
    """Whether the text is one valid JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def has_conversations(head: bytes) -> bool:
    """Whether JSON with this start has LLaVA conversations."""
    return head[:1] in (b"[", b"{") and _CONVERSATIONS.search(head) is not None


def is_label_studio(head: bytes) -> bool:
    """Whether JSON with this start may be an export of Label Studio."""
    return head.startswith(b"[") and _TASKS.search(head) is not None


def shell_name(name: str) -> str:
    """The file's name in shell commands: FILE for a URL."""
    return "FILE" if url_scheme(name) else name


def jq(program: str, name: str) -> str:
    """The command that converts a JSON file to a manifest."""
    return written(f"jq -c {shlex.quote(program)} {shlex.quote(name)}", name)


def written(command: str, file: str, suffix: str = ".jsonl") -> str:
    """The command with a file for its output: not its input, which the shell would empty first."""
    return f"{command} > {'new' if PurePath(file).stem == 'rows' else 'rows'}{suffix}"
