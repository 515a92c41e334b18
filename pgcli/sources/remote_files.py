"""URLs as sources: the images, manifests and archives at a URL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from glob import has_magic

from pgcli.errors import ManifestError, NoInputError, UsageError
from pgcli.records import Item
from pgcli.remote import RemoteError, RemoteFile, UrlReader
from pgcli.remote.urls import SCHEMES, has_credentials, is_web, scheme_of, url_path
from pgcli.sources.dataset_files import dataset_files, dataset_parts, select_files
from pgcli.sources.endings import IMAGE_ENDINGS, NO_ENDING, ending
from pgcli.sources.file_list import FileList
from pgcli.sources.growing_part import GrowingPart
from pgcli.sources.image_files import group_images, is_supported_file, one_image
from pgcli.sources.manifest import ManifestSource
from pgcli.sources.name_filter import ALL_NAMES, NameFilter
from pgcli.sources.paths import display_path
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers import manifest_ending
from pgcli.sources.source_part import RowSlice, SourcePart

_SCHEMES = ", ".join(f"{scheme}://" for scheme in sorted(SCHEMES))
_HINTS = {
    "missing": "check the spelling",
    "permission_denied": "s3://, gs:// and az:// use the credentials of the environment, and "
    "s3://anonymous@bucket/ none; hf:// uses those of `hf auth login`",
    "url_blocked": "--allow-private-hosts reads from any machine",
}


class RemoteFolder(GrowingPart):
    """A folder of a store as a source: its images, in code-point order of their relative paths."""

    has_prompts = False

    def __init__(
        self, url: str, files: Sequence[str], *, alone: bool, names: NameFilter = ALL_NAMES
    ):
        self.name = display_path(url)
        self._url = url.rstrip("/")
        self._alone = alone
        images = [file for file in files if ending(file) in IMAGE_ENDINGS]
        self.ignored = Counter(map(ending, set(files).difference(images)))
        self._images = list(filter(names.accepts, images))
        self.has_excluded = len(self._images) < len(images)
        self.total = len(self._images)
        self.kinds = Counter(map(ending, self._images))

    def found_names(self) -> list[str]:
        return self._images

    def read_list(self, file_list: FileList) -> None:
        super().read_list(file_list)
        self._images = []

    def rows(self, first: int, part: RowSlice, generation: int = 0) -> Iterator[Item]:
        """Some images of a generation; `first` is the index of the first one."""
        for index, name in enumerate(self.names(generation, part), first + part.start):
            url = f"{self._url}/{name}"
            row_id = display_path(name if self._alone else url)
            yield Item(index, row_id, display_path(url), url)


def expand_url(url: str, options: ReadOptions, *, alone: bool) -> Iterator[SourcePart]:
    """The sources at a URL. Raises UsageError if it cannot be read."""
    reader = check_readable(url, options)
    if is_web(url):
        yield open_web(url, options, reader)
        return
    with usage_errors(display_path(url)):
        kind = reader.kind(url)
    if kind == "file":
        yield open_file(url, options, reader)
    elif kind == "folder":
        yield from open_folder(url, options, reader, alone=alone)
    elif has_magic(url_path(url)):
        yield from open_glob(url, options, reader)
    else:
        raise UsageError(f"there is nothing at {display_path(url)}", hint=_HINTS["missing"])


def check_readable(url: str, options: ReadOptions) -> UrlReader:
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


def open_web(url: str, options: ReadOptions, reader: UrlReader) -> SourcePart:
    """The file at a web URL; web servers do not list folders."""
    path = url_path(url)
    if "*" in path or path.endswith("/") or not path:
        raise UsageError(
            f"{display_path(url)} does not name a file, and web servers do not list folders",
            hint="name the images in a manifest, one per row; it may be on the server too",
        )
    return open_file(url, options, reader)


def open_folder(
    url: str, options: ReadOptions, reader: UrlReader, *, alone: bool
) -> Iterator[SourcePart]:
    """The images of a folder, or the files of the data set that it holds instead."""
    with usage_errors(display_path(url)):
        files = [file for file in reader.list_files(url) if is_visible(file)]
    images = RemoteFolder(url, files, alone=alone, names=options.names)
    tables = [] if images.total or images.has_excluded else dataset_files(files)
    images.has_excluded |= bool(tables)
    found = {
        file: open_file(f"{url.rstrip('/')}/{file}", replace(options, names=names), reader)
        for file, names in select_files(tables, options.names).items()
    }
    yield from dataset_parts(found, images.ignored) if found else (images,)


def open_glob(pattern: str, options: ReadOptions, reader: UrlReader) -> Iterator[SourcePart]:
    """The files that a glob matches, in order; consecutive images are one part."""
    pieces = pattern.split("/")
    first = next(n for n, piece in enumerate(pieces) if n > 2 and has_magic(piece))
    folder, wanted = "/".join(pieces[:first]), pieces[first:]
    with usage_errors(display_path(pattern)):
        names = reader.list_files(folder)
    found = [f"{folder}/{name}" for name in names if glob_matches(name.split("/"), wanted)]
    readable = [url for url in found if is_supported_file(url)]
    ignored = Counter(map(ending, set(found).difference(readable)))
    if not readable:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))
        hint = f"skipped: {kinds}" if kinds else _HINTS["missing"]
        raise NoInputError(f"nothing matches {display_path(pattern)}", hint=hint)
    yield from group_images(
        pattern, readable, ignored, options.names, lambda url: open_file(url, options, reader)
    )


def open_file(url: str, options: ReadOptions, reader: UrlReader) -> SourcePart:
    """An image or a manifest, by its ending; a web URL without an ending is an image."""
    name, path = display_path(url), url_path(url)
    kind = ending(path)
    if kind in IMAGE_ENDINGS or (is_web(url) and kind == NO_ENDING):
        return one_image(name, url, options.names)
    with usage_errors(name):
        if manifest_ending(path) is not None:
            return ManifestSource(name, RemoteFile(url, reader), options)
    hint = f"images end in {', '.join(sorted(IMAGE_ENDINGS))}; or name it in a manifest's row"
    raise UsageError(f"{name} is neither an image nor a manifest by its ending", hint=hint)


def is_visible(name: str) -> bool:
    """Whether the file is not hidden, not in a hidden folder, and not state of a run."""
    *folders, last = name.split("/")
    hidden = any(part.startswith(".") for part in (*folders, last))
    return not hidden and not any(part.endswith(".pgcli") for part in folders)


def glob_matches(path: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a glob matches a path; `**` stands for any number of folders that are not hidden."""
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
