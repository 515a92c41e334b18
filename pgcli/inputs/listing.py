"""Expands sources to their files, in order: folders, files, patterns and URLs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from glob import has_magic
from pathlib import Path
from typing import NoReturn

from pgcli.errors import ManifestError, NoInputError, UsageError
from pgcli.inputs.file_table import BELOW, IMAGE, MATCHED, NAMED, TABLE, FileRecord
from pgcli.inputs.options import (
    IMAGE_ENDINGS,
    NO_ENDING,
    UNDERSCORE,
    InputFile,
    NameFilter,
    ReadOptions,
    ending,
    images_hint,
    manifest_ending,
    matches,
    no_input_hint,
    supported_files_hint,
)
from pgcli.inputs.paths import (
    HIDDEN,
    LINKED,
    Glob,
    WalkedFile,
    display_name,
    display_path,
    file_status,
    fixed_part,
    glob_files,
    is_output,
    walk_folder,
    without_hidden,
)
from pgcli.inputs.tables import Table, open_table
from pgcli.stores import Entry, Reader, RemoteError
from pgcli.stores.files import parse_path
from pgcli.stores.urls import SCHEMES, has_credentials, is_web, url_path, url_scheme

_SCHEMES = ", ".join(f"{scheme}://" for scheme in sorted(SCHEMES))
_HINTS = {
    "missing": "check the spelling",
    "permission_denied": "s3://, gs:// and az:// use the credentials of the environment, "
    "s3://anonymous@bucket/ uses none, and hf:// uses `hf auth login`",
    "path_not_allowed": "rename the object",
    "url_blocked": "<--allow-private-hosts> reads from any machine",
}
PARQUET, ARCHIVE, PDF = ".parquet", ".tar", ".pdf"
#: The folder of a Delta table that says which of its files are current.
DELTA_LOG = "_delta_log"


class SourceFiles:
    """The files of a source, and their names in rows.

    After `records`, `ignored` counts the skipped files by ending, and `has_excluded` says whether
    patterns excluded images.
    """

    def __init__(self, number: int, name: str, options: ReadOptions, *, is_alone: bool):
        self.number, self.name, self._options, self._is_alone = number, name, options, is_alone
        self.ignored: Counter[str] = Counter()
        self.has_excluded = False
        self.is_url = url_scheme(name) is not None
        self.path = name if self.is_url else parse_path(name)
        self._base = "" if self.is_url else options.folder
        self._folder = f"{name.rstrip('/')}/" if self.is_url else os.path.join(self.path, "")  # noqa: PTH118
        self._fixed = fixed_part(self.path)

    # --- names of its files

    def path_of(self, place: int, name: bytes) -> str:
        """The path or the URL of a file."""
        if place == NAMED:
            return self.path
        return (self._folder if place == BELOW else self._fixed) + os.fsdecode(name)

    def file_name(self, place: int, name: bytes) -> str:
        """The path of a file, or the path in its URL."""
        path = self.path_of(place, name)
        return url_path(path) if self.is_url else path

    def opened(self, path: str) -> str:
        """The path at which a file of the source is opened."""
        return os.path.join(self._base, path)  # noqa: PTH118

    def open_table(self, record: FileRecord, options: ReadOptions | None = None) -> Table:
        """A table of the source."""
        path, options = self.path_of(record.place, record.name), options or self._options
        name = self.name if record.place == NAMED and not self.is_url else display_path(path)
        reader = reader_of(path, options) if self.is_url else None
        file = InputFile(path, display_name(name), reader, base=self._base)
        return open_table(file, options, record)

    def located(self, place: int, name: bytes) -> tuple[str, str, str]:
        """The path or URL of an image, the id of its row, and the path in its row."""
        path = self.path_of(place, name)
        if place == NAMED:
            shown = display_name(display_path(self.name) if self.is_url else self.name)
            return self.opened(path), shown, shown
        shown = display_path(path)
        is_relative = place == BELOW and self._is_alone
        row_id = display_path(os.fsdecode(name)) if is_relative else shown
        return self.opened(path), row_id, shown

    @cached_property
    def root(self) -> str | None:
        """The real path of the folder that must contain the images; None for a URL."""
        return None if self.is_url else os.path.realpath(self.opened(self.path))

    # --- listing

    def records(self) -> Iterator[FileRecord]:
        """The files in order; tables are not read yet.

        A folder without images is read as a data set of Parquet files, archives or PDFs. Raises
        UsageError for a name that is not a source, and NoInputError for a pattern without a match.
        """
        with usage_errors(display_path(self.name)):
            place, files = self._remote_files() if self.is_url else self._local_files()
            has_images, tables = False, dict[str, WalkedFile]()
            for file in self._readable(place, files):
                name = file.relative or self.file_name(NAMED, b"")
                kind = ending(name)
                is_web_image = self.is_url and is_web(self.name) and kind == NO_ENDING
                if kind in IMAGE_ENDINGS or is_web_image or name.endswith("/"):
                    if self._accepts(place, file):
                        has_images = True
                        yield self._record(place, IMAGE, file)
                    else:
                        self.has_excluded = True
                elif manifest_ending(name) is None or (place == MATCHED and self._is_output(file)):
                    self.ignored[kind] += 1
                elif place == BELOW:
                    self.ignored[kind] += 1
                    tables[name] = file
                elif self.names_in(place, os.fsencode(file.relative)) is None:
                    self.has_excluded = True
                else:
                    tables[name] = file
                    yield self._record(place, TABLE, file)
            if place == BELOW and not has_images:
                dataset = self._dataset(tables)
                yield from (self._record(place, TABLE, file) for file in dataset)
            if place != BELOW and not (has_images or tables or self.has_excluded):
                self._refuse(place)

    def _readable(self, place: int, files: Iterable[WalkedFile]) -> Iterator[WalkedFile]:
        """The files that may be read. Counts hidden and linked ones; raises for a Delta table."""
        for file in files:
            name = file.relative or self.file_name(NAMED, b"")
            if file.problem == HIDDEN:
                last = name.rstrip("/").rpartition("/")[2]
                if last.startswith("_"):
                    self.ignored[UNDERSCORE] += 1
                if last == DELTA_LOG:
                    table = self.path_of(place, os.fsencode(name[: -len(last) - 2])).rstrip("/")
                    raise UsageError(
                        f"{display_path(table)} is a Delta table, which also has files of earlier "
                        "versions",
                        hint="name its current files",
                    )
            elif file.problem == LINKED:
                self.ignored["(linked folder)"] += 1
            else:
                yield file

    def _local_files(self) -> tuple[int, Iterable[WalkedFile]]:
        """The kind of source, and its files."""
        name, path = self.name, self.opened(self.path)
        if os.path.isdir(path):  # noqa: PTH112 - Path raises for a NUL
            try:
                os.scandir(path).close()
            except OSError as problem:
                hint = "change its permissions, or name another folder"
                raise UsageError(f"{name}: {problem.strerror}", hint=hint) from problem
            return BELOW, walk_folder(
                path, self._options.names, allow_outside_root=self._options.allow_outside_root
            )
        if os.path.lexists(path):
            if manifest_ending(path) is not None and not Path(path).is_file():
                hint = "a manifest is read twice; pipe its rows to `-` instead"
                raise UsageError(f"{name} is not a regular file", hint=hint)
            return NAMED, [file_status(path, "")]
        if has_magic(self.path):
            return MATCHED, glob_files(self.path, self._base)
        raise UsageError(
            f"{path if self._base else name or 'the source with an empty name'} does not exist",
            hint="check the spelling and the folder",
        )

    def _remote_files(self) -> tuple[int, Iterable[WalkedFile]]:
        url, reader = self.name, reader_of(self.name, self._options)
        path = url_path(url)
        if is_web(url) and ("*" in path or path.endswith("/") or not path):
            raise UsageError(
                f"{display_path(url)} does not name a file, and web servers do not list folders",
                hint="name the images in a manifest, one per row; it may be on the server too",
            )
        kind = "file" if is_web(url) else reader.kind(url)
        if kind == "file":
            size = None
            if manifest_ending(path) is not None:
                with suppress(OSError), reader.open(url) as file:
                    size = file.seek(0, os.SEEK_END)
            return NAMED, [WalkedFile("", size)]
        if kind == "folder":
            return BELOW, without_hidden(remote_files(reader.entries(url)), self._options.names)
        if has_magic(path):
            pattern = url.removeprefix(self._fixed)
            files = remote_files(reader.entries(self._fixed.rstrip("/")))
            return MATCHED, without_hidden(files, NameFilter(include=(pattern,)), Glob(pattern))
        raise UsageError(f"{display_path(url)} does not exist", hint=_HINTS["missing"])

    def _name(self, place: int, name: bytes) -> str:
        """The name that patterns must match."""
        return os.fsdecode(name) if place == BELOW else self.located(place, name)[2]

    def _accepts(self, place: int, file: WalkedFile) -> bool:
        """Whether the patterns accept an image."""
        names = self._options.names
        return not names or names.accepts(self._name(place, os.fsencode(file.relative)))

    def names_in(self, place: int, name: bytes) -> NameFilter | None:
        """The patterns for the rows of a table; None if the table is excluded."""
        return self._options.names.in_table(self._name(place, name))

    def _is_output(self, file: WalkedFile, place: int = MATCHED) -> bool:
        path = self.path_of(place, os.fsencode(file.relative))
        return not self.is_url and is_output(self.opened(path))

    def _dataset(self, tables: Mapping[str, WalkedFile]) -> list[WalkedFile]:
        """The tables of a folder to read: all of one kind, Parquet files before archives and PDFs.

        Patterns that match whole files may choose any kind.
        """
        names = self._options.names
        read = [name for name in tables if not self._is_output(tables[name], BELOW)]
        accepted = [name for name in read if names.in_table(name) is not None]
        self.has_excluded |= bool(names and read)
        chosen = [name for name in accepted if matches(name, names.include)]
        kinds = {kind_of_table(name): name for name in reversed(chosen or accepted)}
        others = kinds.keys() - {PARQUET}
        order = [PARQUET, ARCHIVE, PDF, *(sorted(others) if chosen else ())]
        kind = next((kind for kind in order if kind in kinds), None)
        dataset = [name for name in accepted if kind_of_table(name) == kind]
        self.ignored -= Counter(map(ending, dataset))
        return [tables[name] for name in dataset]

    def _refuse(self, place: int) -> NoReturn:
        """Raise the error for an unsupported file, or for a pattern without a match."""
        name = display_path(self.name)
        if place == NAMED:
            hint = f"{images_hint()}; or name it in a manifest's row"
            hint = hint if self.is_url else supported_files_hint()
            if self.path.lower().endswith(".json"):
                hint = "rename it to .jsonl if it has a JSON object on each line; `pgcli import` "
                hint += "reads annotations"
            raise UsageError(
                f"{name if self.is_url else self.name} is neither an image nor a manifest: unknown "
                "extension",
                hint=hint,
            )
        hint = no_input_hint(self.ignored)
        if self.is_url:
            kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ignored.items()))
            hint = f"skipped: {kinds}" if kinds else _HINTS["missing"]
        raise NoInputError(f"nothing matches {name}", hint=hint)

    def _record(self, place: int, kind: int, file: WalkedFile) -> FileRecord:
        self._options.track(int(kind == IMAGE))
        name, rows = os.fsencode(file.relative.rstrip("/")), 1 if kind == IMAGE else None
        return FileRecord(
            self.number, place, kind, name, file.size, file.mtime_ns, rows, file.problem
        )


def source_files(sources: Sequence[str], options: ReadOptions) -> list[SourceFiles]:
    """The sources by their numbers."""
    is_alone = len(sources) == 1
    return [SourceFiles(n, name, options, is_alone=is_alone) for n, name in enumerate(sources)]


def remote_files(entries: Iterable[Entry]) -> Iterator[WalkedFile]:
    """The files in a store's listing, without the state of runs."""
    for entry in entries:
        if not any(folder.endswith(".pgcli") for folder in entry.name.split("/")[:-1]):
            yield WalkedFile(entry.name, entry.size, int(entry.modified * 1e9))


def kind_of_table(name: str) -> str:
    """PARQUET, ARCHIVE, or the ending of another manifest."""
    ending = manifest_ending(name) or ""
    return ARCHIVE if ending.startswith((".tar", ".tgz")) else ending


def locate_source(name: str, options: ReadOptions) -> InputFile:
    """The file at a path or a URL. Raises UsageError."""
    if url_scheme(name) is None:
        return InputFile(parse_path(name), display_name(name))
    return InputFile(name, display_path(name), reader_of(name, options))


def reader_of(url: str, options: ReadOptions) -> Reader:
    """The reader for the URL. Raises UsageError for an unsupported URL and without --allow-urls."""
    name = display_path(url)
    if url_scheme(url) not in SCHEMES:
        message = f"{name}: {url_scheme(url)} URLs are not supported, only {_SCHEMES}"
        raise UsageError(message, hint="download the images and name their folder")
    if options.url_reader is None:
        hint = "add <--allow-urls>, if the command has this option"
        raise UsageError(
            f"{name} is a URL, and pgcli reads URLs only with <--allow-urls>", hint=hint
        )
    if has_credentials(url):
        raise UsageError(
            f"{name} contains a user name or a password",
            hint="remove them: s3://, gs:// and az:// use the credentials of the environment, "
            "hf:// uses `hf auth login`; from a web server, download the files first",
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
        hint = _HINTS.get(cause.fault.code, "check the URL, and for s3:// AWS_REGION")
        raise UsageError(f"{name}: {message[:1].lower()}{message[1:]}", hint=hint) from error
