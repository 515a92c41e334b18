"""Expands sources to their files, in order: folders, files, patterns and addresses."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from glob import has_magic
from pathlib import Path

from pgcli.errors import ManifestError, NoInputError, UsageError
from pgcli.inputs.endings import (
    IMAGE_ENDINGS,
    NO_ENDING,
    ending,
    images_hint,
    no_input_hint,
    supported_files_hint,
)
from pgcli.inputs.file_table import BELOW, IMAGE, MATCHED, NAMED, TABLE, FileRecord
from pgcli.inputs.options import ReadOptions
from pgcli.inputs.paths import display_name, display_path, parse_path, url_scheme
from pgcli.inputs.readers import InputFile, manifest_ending
from pgcli.inputs.tables import Table
from pgcli.inputs.walk import (
    FOLDER,
    LINKED,
    WalkedFile,
    file_status,
    fixed_part,
    glob_files,
    is_output,
    walk_folder,
)
from pgcli.stores import Entry, Reader, RemoteError
from pgcli.stores.urls import SCHEMES, has_credentials, is_web, scheme_of, url_path

_SCHEMES = ", ".join(f"{scheme}://" for scheme in sorted(SCHEMES))
_HINTS = {
    "missing": "check the spelling",
    "permission_denied": "s3://, gs:// and az:// use the credentials of the environment, and "
    "s3://anonymous@bucket/ none; hf:// uses those of `hf auth login`",
    "url_blocked": "--allow-private-hosts reads from any machine",
}
#: Endings of data set files; of a folder with several kinds only the first kind is read.
DATASET_ENDINGS = ((".parquet",), (".tar", ".tar.gz", ".tgz"))


class SourceFiles:
    """A source by its name: where its files are, and what they are called in rows."""

    def __init__(self, number: int, name: str, *, is_alone: bool):
        self.number, self.name, self.is_alone = number, name, is_alone
        self.is_url = url_scheme(name) is not None
        self.path = name if self.is_url else parse_path(name)
        self._folder = f"{name.rstrip('/')}/" if self.is_url else os.path.join(self.path, "")  # noqa: PTH118
        self._fixed = fixed_url(name) if self.is_url else fixed_part(self.path)

    def path_of(self, place: int, name: bytes) -> str:
        """The path or the URL of a file."""
        if place == NAMED:
            return self.path
        return (self._folder if place == BELOW else self._fixed) + os.fsdecode(name)

    def file_name(self, place: int, name: bytes) -> str:
        """The path of a file; of an address, that in it."""
        path = self.path_of(place, name)
        return url_path(path) if self.is_url else path

    def open_table(self, record: FileRecord, options: ReadOptions) -> Table:
        """A table of the source."""
        path = self.path_of(record.place, record.name)
        name = self.name if record.place == NAMED and not self.is_url else display_path(path)
        reader = check_readable(path, options) if self.is_url else None
        return Table(InputFile(path, display_name(name), reader), options, record)

    def located(self, place: int, name: bytes) -> tuple[str, str, str]:
        """The path or the URL of an image, its id by that name, and the path that its rows show."""
        path = self.path_of(place, name)
        if place == NAMED:
            shown = display_name(display_path(self.name) if self.is_url else self.name)
            return path, shown, shown
        shown = display_path(path)
        is_relative = place == BELOW and self.is_alone
        return path, display_path(os.fsdecode(name)) if is_relative else shown, shown

    @cached_property
    def root(self) -> str | None:
        """The real path of a folder, which its images have to be in; None for an address."""
        return None if self.is_url else os.path.realpath(self.path)


class Listing:
    """The files of a source as they are found, by `records`; then counts of what is passed over.

    `has_excluded` images if their names are not accepted.
    """

    def __init__(self, source: SourceFiles, options: ReadOptions):
        self._source, self._options, self._names = source, options, options.names
        self.ignored: Counter[str] = Counter()
        self.has_excluded = False

    def records(self) -> Iterator[FileRecord]:
        """The files in order, tables without what their rows say.

        Raises UsageError for a name that is not a source, and NoInputError for a pattern without a
        match.
        """
        name, path = self._source.name, self._source.path
        if self._source.is_url:
            with usage_errors(display_path(name)):
                yield from self._remote_records(name)
        elif os.path.isdir(path):  # noqa: PTH112 - Path raises for a NUL
            outside = self._options.allow_outside_root
            try:
                yield from self._below(walk_folder(path, self._names, allow_outside_root=outside))
            except OSError as problem:
                hint = "change its permissions, or name another folder"
                raise UsageError(f"{name}: {problem.strerror}", hint=hint) from problem
        elif os.path.lexists(path):
            yield from self._named(file_status(path, ""))
        elif has_magic(path):
            fixed = len(fixed_part(path))
            yield from self._matches(file_status(f, f[fixed:]) for f in glob_files(path))
        else:
            raise UsageError(f"{name} does not exist", hint="check the spelling and the folder")

    def _remote_records(self, url: str) -> Iterator[FileRecord]:
        reader = check_readable(url, self._options)
        path = url_path(url)
        if is_web(url) and ("*" in path or path.endswith("/") or not path):
            raise UsageError(
                f"{display_path(url)} does not name a file, and web servers do not list folders",
                hint="name the images in a manifest, one per row; it may be on the server too",
            )
        kind = "file" if is_web(url) else reader.kind(url)
        if kind == "file":
            is_table = manifest_ending(path) is not None
            yield from self._named(WalkedFile("", remote_size(url, reader) if is_table else None))
        elif kind == "folder":
            visible = (entry for entry in reader.entries(url) if is_visible(entry.name))
            yield from self._below(map(remote_file, visible))
        elif has_magic(path):
            fixed = fixed_url(url)
            pieces = url[len(fixed) :].split("/")
            entries = reader.entries(fixed.rstrip("/"))
            found = (entry for entry in entries if glob_matches(entry.name.split("/"), pieces))
            yield from self._matches(map(remote_file, found))
        else:
            raise UsageError(f"there is nothing at {display_path(url)}", hint=_HINTS["missing"])

    def _named(self, file: WalkedFile) -> Iterator[FileRecord]:
        """An image file or a manifest, by its ending. Raises UsageError for other files."""
        path, name, hint = self._source.path, self._source.name, supported_files_hint()
        if self._source.is_url:
            path, name = url_path(path), display_path(name)
            hint = f"{images_hint()}; or name it in a manifest's row"
        kind = ending(path)
        is_web_image = self._source.is_url and is_web(self._source.name) and kind == NO_ENDING
        if kind in IMAGE_ENDINGS or is_web_image:
            self.has_excluded = not self._names.accepts(display_name(name))
            if not self.has_excluded:
                yield self._record(NAMED, IMAGE, file)
            return
        if manifest_ending(path) is None:
            message = f"{name} is neither an image nor a manifest by its ending"
            raise UsageError(message, hint=hint)
        if not self._source.is_url and not Path(path).is_file():
            hint = "a manifest is read twice; pipe its rows to `-` instead"
            raise UsageError(f"{name} is not a regular file", hint=hint)
        yield self._record(NAMED, TABLE, file)

    def _below(self, files: Iterable[WalkedFile]) -> Iterator[FileRecord]:
        """The images of a folder; where it has none, the files of the data set that it holds."""
        has_images, tables = False, dict[str, WalkedFile]()
        for file in files:
            name, kind = file.relative, ending(file.relative)
            if file.problem == LINKED:
                self.ignored["(linked folder)"] += 1
            elif name.endswith("/"):
                has_images = True
                yield self._record(BELOW, IMAGE, file._replace(relative=name.rstrip("/")))
            elif kind in IMAGE_ENDINGS:
                has_images = True
                if self._names.accepts(name):
                    yield self._record(BELOW, IMAGE, file)
                else:
                    self.has_excluded = True
            else:
                self.ignored[kind] += 1
                if not has_images and manifest_ending(name) is not None:
                    tables[name] = file
        found = [] if has_images else dataset_files(tables)
        for name in found:
            if self._source.is_url or not is_output(self._path(BELOW, name)):
                self.has_excluded |= bool(self._names)
                if self._names.in_table(name) is not None:
                    self.ignored -= Counter([ending(name)])
                    yield self._record(BELOW, TABLE, tables[name])

    def _matches(self, files: Iterable[WalkedFile]) -> Iterator[FileRecord]:
        """The images and manifests among the matches of a pattern. Raises NoInputError."""
        has_matches = False
        for file in files:
            name, kind = file.relative, ending(file.relative)
            path = self._path(MATCHED, name)
            is_image = kind in IMAGE_ENDINGS or name.endswith("/")
            is_table = manifest_ending(name) is not None
            is_read = is_image or (is_table and (self._source.is_url or not is_output(path)))
            if file.problem == FOLDER or not is_read:
                self.ignored[kind] += 1
            elif is_image and not self._names.accepts(display_path(path)):
                has_matches = self.has_excluded = True
            else:
                has_matches = True
                file = file._replace(relative=name.rstrip("/"))
                yield self._record(MATCHED, IMAGE if is_image else TABLE, file)
        if not has_matches:
            hint = no_input_hint(self.ignored)
            if self._source.is_url:
                kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ignored.items()))
                hint = f"skipped: {kinds}" if kinds else _HINTS["missing"]
            raise NoInputError(f"nothing matches {display_path(self._source.name)}", hint=hint)

    def _path(self, place: int, name: str) -> str:
        return self._source.path_of(place, os.fsencode(name))

    def _record(self, place: int, kind: int, file: WalkedFile) -> FileRecord:
        self._options.track(int(kind == IMAGE))
        name, rows = os.fsencode(file.relative), 1 if kind == IMAGE else None
        problem = None if file.problem == FOLDER else file.problem
        return FileRecord(
            self._source.number, place, kind, name, file.size, file.mtime_ns, rows, problem
        )


def remote_file(entry: Entry) -> WalkedFile:
    """A file as the listing of a store has it."""
    return WalkedFile(entry.name, entry.size, int(entry.modified * 1e9))


def remote_size(url: str, reader: Reader) -> int | None:
    """The size of a file at an address; None if it cannot be read now."""
    try:
        with reader.open(url) as file:
            return file.seek(0, os.SEEK_END)
    except OSError:
        return None


def dataset_files(names: Iterable[str]) -> list[str]:
    """The files of a folder's data set: all Parquet files, or else all archives."""
    by_ending = [(name, manifest_ending(name)) for name in names]
    found = ([name for name, end in by_ending if end in ends] for ends in DATASET_ENDINGS)
    return next(filter(None, found), [])


def is_visible(name: str) -> bool:
    """Whether a remote file is not hidden, not in a hidden folder, and not state of a run."""
    *folders, last = name.split("/")
    hidden = any(piece.startswith(".") for piece in (*folders, last))
    return not hidden and not any(piece.endswith(".pgcli") for piece in folders)


def glob_matches(path: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a glob matches a path; `**` stands for any number of folders that are not hidden."""
    # the pieces of the pattern that may match the next piece of the path
    places = {0}
    for number, piece in enumerate(path):
        is_last, following = number == len(path) - 1, set[int]()
        for place in places:
            while place < len(wanted) and wanted[place] == "**":
                if not is_last and not piece.startswith("."):
                    following.add(place)
                if place == len(wanted) - 1 and is_last and not piece.startswith("."):
                    return True  # `**` at the end stands for files as well
                place += 1
            if place == len(wanted) or (
                piece.startswith(".") and not wanted[place].startswith(".")
            ):
                continue
            if fnmatchcase(piece, wanted[place]):
                following.add(place + 1)
        places = following
    return len(wanted) in places


def fixed_url(url: str) -> str:
    """The folder below which a pattern at an address matches, up to its last slash."""
    pieces = url.split("/")
    magic = (n for n, piece in enumerate(pieces) if n > 2 and has_magic(piece))
    return "".join(f"{piece}/" for piece in pieces[: next(magic, len(pieces) - 1)])


def locate_source(name: str, options: ReadOptions) -> InputFile:
    """The file that a name or an address stands for. Raises UsageError."""
    if url_scheme(name) is None:
        return InputFile(parse_path(name), display_name(name))
    return InputFile(name, display_path(name), check_readable(name, options))


def check_readable(url: str, options: ReadOptions) -> Reader:
    """The reader for the URL. Raises UsageError if such a URL is not read, or none is."""
    name = display_path(url)
    if scheme_of(url) not in SCHEMES:
        message = f"{name}: {scheme_of(url)} addresses are not read; only {_SCHEMES}"
        raise UsageError(message, hint="download the images and name their folder")
    if options.url_reader is None:
        hint = "--allow-urls reads it, in commands that have this option"
        raise UsageError(f"{name} is an address, and addresses are not read by default", hint=hint)
    if has_credentials(url):
        raise UsageError(
            f"{name} is written with a user name or a password, which addresses may not hold",
            hint="s3://, gs:// and az:// use the credentials of the environment, hf:// those of "
            "`hf auth login`; from a web server, download the files",
        )
    return options.url_reader


@contextmanager
def usage_errors(name: str) -> Iterator[None]:
    """Turn an error of a remote file into a UsageError that names the file and a remedy."""
    try:
        yield
    except (RemoteError, ManifestError) as error:
        cause = error if isinstance(error, RemoteError) else error.__cause__
        if not isinstance(cause, RemoteError):
            raise
        message = cause.fault.message.rstrip(".")
        hint = _HINTS.get(cause.fault.code, "the same command tries again")
        raise UsageError(f"{name}: {message[:1].lower()}{message[1:]}", hint=hint) from error
