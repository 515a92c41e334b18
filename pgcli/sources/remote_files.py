"""Addresses as sources: what is at one, as the same parts that paths are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from glob import has_magic

from pgcli.errors import ManifestError, NoInputError, UsageError
from pgcli.records import Item
from pgcli.remote import RemoteError, RemoteFile, UrlReader
from pgcli.remote.addresses import SCHEMES, is_web, scheme_of, url_path
from pgcli.sources.dataset_files import dataset_files, dataset_parts
from pgcli.sources.file_list import FileList
from pgcli.sources.files import FileSource, group_images, has_reader
from pgcli.sources.manifest import ManifestSource
from pgcli.sources.paths import display_path
from pgcli.sources.readers import kind_of
from pgcli.sources.source_options import IMAGE_ENDINGS, ReadOptions, SourcePart, ending

_KINDS = ", ".join(f"{kind}://" for kind in sorted(SCHEMES))
_HINTS = {
    "missing": "check the spelling",
    "permission_denied": "s3:// and gs:// go by the credentials of the environment, and "
    "s3://anonymous@bucket/ by none; hf:// by `hf auth login`",
    "url_blocked": "--allow-private-hosts reads from any machine",
}


class RemoteFolder:
    """A folder of a store as a source: its pictures, in code-point order of their relative paths.

    Once it is listed each pass goes by that, whatever comes to the folder or goes.
    """

    has_prompts = False

    def __init__(self, address: str, names: Sequence[str], *, alone: bool):
        self.name = display_path(address)
        self._address = address.rstrip("/")
        self._alone = alone
        self._found = [name for name in names if ending(name) in IMAGE_ENDINGS]
        self.ignored = Counter(map(ending, set(names).difference(self._found)))
        self._listing: FileList | None = None
        self.total = len(self._found)

    @property
    def kinds(self) -> Counter[str]:
        """How many pictures there are of each ending."""
        return Counter(map(ending, self._found))

    def pin_files(self, listing: FileList, number: int) -> None:
        """Go by what is listed, to which what is new is added with this number. Raises OSError."""
        self.total = listing.add(self._found, number)
        self._listing = listing

    def items(self, first: int, number: int = 0) -> Iterator[Item]:
        """The folder's pictures, numbered from `first`; those of one list where there are lists."""
        if self._listing is not None:
            found = self._listing.names(number)
        else:
            found = iter(self._found if number == 0 else ())
        for index, relative in enumerate(found, first):
            path = f"{self._address}/{relative}"
            yield Item(
                index, display_path(relative if self._alone else path), display_path(path), path
            )


def parts(address: str, reading: ReadOptions, *, alone: bool) -> Iterator[SourcePart]:
    """What is at an address. Raises UsageError where it cannot be meant, or may not be read."""
    url_reader, name = reading.url_reader, display_path(address)
    if scheme_of(address) not in SCHEMES:
        message = f"{name}: {scheme_of(address)} addresses are not read; only {_KINDS}"
        raise UsageError(message, hint="download the pictures and name their folder")
    if url_reader is None:
        hint = "--allow-urls reads it, in commands that take it"
        raise UsageError(f"{name} is an address, and none is read unasked", hint=hint)
    if is_web(address):
        yield of_web(address, reading, url_reader)
        return
    with explained(name):
        kind = url_reader.stores.kind(address)
    if kind == "file":
        yield file(address, reading, url_reader)
    elif kind == "folder":
        yield from folder(address, reading, url_reader, alone=alone)
    elif has_magic(url_path(address)):
        yield from matched(address, reading, url_reader)
    else:
        raise UsageError(f"there is nothing at {name}", hint=_HINTS["missing"])


def of_web(address: str, reading: ReadOptions, url_reader: UrlReader) -> SourcePart:
    """What a server of the web has: one file, as there is no way to list more."""
    path = url_path(address)
    if "*" in path or path.endswith("/") or not path:
        raise UsageError(
            f"{display_path(address)} names no file, and servers of the web list none",
            hint="name the pictures in a manifest, a row each; it may lie on the server too",
        )
    return file(address, reading, url_reader)


def folder(
    address: str, reading: ReadOptions, url_reader: UrlReader, *, alone: bool
) -> Iterator[SourcePart]:
    """A folder's pictures, or the files of the data set that it holds instead."""
    with explained(display_path(address)):
        names = [name for name in url_reader.stores.names(address) if is_visible(name)]
    pictures = RemoteFolder(address, names, alone=alone)
    named = [] if pictures.total else dataset_files(names)
    found = {name: file(f"{address.rstrip('/')}/{name}", reading, url_reader) for name in named}
    yield from dataset_parts(found, pictures.ignored) if found else (pictures,)


def matched(pattern: str, reading: ReadOptions, url_reader: UrlReader) -> Iterator[SourcePart]:
    """What a pattern matches, in order; pictures next to each other as one part."""
    pieces = pattern.split("/")
    plain = next(n for n, piece in enumerate(pieces) if n > 2 and has_magic(piece))
    base, wanted = "/".join(pieces[:plain]), pieces[plain:]
    with explained(display_path(pattern)):
        below = url_reader.stores.names(base)
    found = [f"{base}/{name}" for name in below if glob_matches(name.split("/"), wanted)]
    known = [address for address in found if has_reader(address)]
    ignored = Counter(map(ending, set(found).difference(known)))
    if not known:
        left = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))
        hint = f"left out: {left}" if left else _HINTS["missing"]
        raise NoInputError(f"nothing matches {display_path(pattern)}", hint=hint)
    yield from group_images(
        pattern, known, ignored, lambda address: file(address, reading, url_reader)
    )


def file(address: str, reading: ReadOptions, url_reader: UrlReader) -> SourcePart:
    """A picture or a manifest, by its ending; what the web names without one is a picture."""
    name, path = display_path(address), url_path(address)
    kind = ending(path)
    if kind in IMAGE_ENDINGS or (is_web(address) and kind == "(none)"):
        return FileSource(name, [address])
    with explained(name):
        if kind_of(path) is not None:
            return ManifestSource(name, RemoteFile(address, url_reader), reading)
    hint = f"pictures end in {', '.join(sorted(IMAGE_ENDINGS))}; or name it in a manifest's row"
    raise UsageError(f"{name} is neither a picture nor a manifest by its ending", hint=hint)


def is_visible(name: str) -> bool:
    """Whether neither the file nor a folder above it is hidden, or the state of a run."""
    *folders, last = name.split("/")
    hidden = any(part.startswith(".") for part in (*folders, last))
    return not hidden and not any(part.endswith(".pgcli") for part in folders)


def glob_matches(path: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the pattern means the path; `**` is any number of folders, no hidden one."""
    if not wanted or not path:
        return not wanted and not path
    head, rest = wanted[0], wanted[1:]
    is_hidden = path[0].startswith(".")
    if head == "**":
        here = len(path) > 1 and not is_hidden and glob_matches(path[1:], wanted)
        return here or glob_matches(path, rest or ["*"])
    if is_hidden and not head.startswith("."):
        return False
    return fnmatchcase(path[0], head) and glob_matches(path[1:], rest)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn what is wrong with an address into a message that names it and a way out."""
    try:
        yield
    except (RemoteError, ManifestError) as found:
        problem = found if isinstance(found, RemoteError) else found.__cause__
        if not isinstance(problem, RemoteError):
            raise
        message = problem.fault.message.rstrip(".")
        hint = _HINTS.get(problem.fault.code, "the same command tries again")
        raise UsageError(f"{name}: {message[:1].lower()}{message[1:]}", hint=hint) from problem
