"""Texts beside images, as trainers read them: photo.txt for photo.jpg, one file for each answer."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path, PurePath, PurePosixPath

from pgcli.inputs.paths import url_scheme
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.printable import encodable
from pgcli.records import Answer, Item
from pgcli.results.publish import write_below
from pgcli.results.row_hook import NullHook
from pgcli.stores.files import open_regular

MAX_NAME_BYTES = 255  # of file systems
MAX_FOLDERS = 64  # whose digests are in memory
ENDINGS = [change(ending) for ending in IMAGE_ENDINGS for change in (str.lower, str.upper)]
#: What is said of texts that `overwrite` keeps: of one, of several.
EDITED = (
    "text kept that was edited or that pgcli did not write",
    "texts kept that were edited or that pgcli did not write",
)
HINT = "free disk space, or check the folder's permissions; the same command writes the rest"


class Sidecars(NullHook):
    """Writes `photo.txt` next to `photo.jpg`, or `photo.jpg.txt` if another image has that name.

    An existing text is kept, or, with `overwrite`, replaced if it is as pgcli wrote it: what a
    person wrote or edited is always kept. Rows that an earlier run saved have a text, too; error
    rows and images that are not files have none. With `is_only_output`, images whose text is kept
    need not be asked. Exports write their texts by `claim` and `write`.
    """

    def __init__(
        self,
        ending: str,
        prepend: str = "",
        append: str = "",
        *,
        overwrite: bool = False,
        is_only_output: bool = False,
    ):
        self._ending, self._prepend, self._append = ending, prepend, append
        self._overwrite, self._is_only_output = overwrite, is_only_output
        self._texts, self._token = WrittenTexts(), str(os.getpid())
        self._taken: set[int] = set()  # hashes take less memory than millions of names
        self._claimed: dict[int, str | None] = {}
        self._renamed_example = ""
        #: Texts that are `written`, `kept` because they exist, or `edited` and therefore kept;
        #: images that are `unnamed`, `renamed` by the name of another, or were `skipped`.
        self.counts: Counter[str] = Counter()

    def skips(self, item: Item) -> bool:
        """Whether the item's text is kept whatever its answer is. Claims the name of its text."""
        if not is_file(item):
            return False
        name = self.claim(item.path or "")
        path = item.path or ""
        outcome = self._kept_as(name, path) if self._is_only_output and name else None
        if outcome is None:
            self._claimed[item.index] = name
            return False
        self.counts.update((outcome, "skipped"))
        return True

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Write the row's answer. Raises OutputFailed."""
        if item.path is None or not is_file(item):
            return
        is_claimed = item.index in self._claimed
        name = self._claimed.pop(item.index) if is_claimed else self.claim(item.path)
        if answer.error is not None:
            return  # its name stays claimed, as the row may be retried
        if name is None:
            self.counts["unnamed"] += 1
            return
        if name != self.own_name(item.path):
            self.counts["renamed"] += 1
            self._renamed_example = self._renamed_example or Path(name).name
        self.write(name, answer.answer, item.path)

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        counts = self.counts
        named = f"named as {self._renamed_example}: another image has the shorter name"
        unnamed = "not written, as no name was left"
        notes = [
            numbered(counts["written"], "file", "files") + f" ending in {self._ending}",
            numbered(counts["kept"], "that exists is kept", "that exist are kept"),
            numbered(counts["edited"], *EDITED),
            numbered(counts["skipped"], "image is not asked", "images are not asked"),
            numbered(counts["renamed"], named, named),
            numbered(counts["unnamed"], unnamed, unnamed),
            self.problem,
        ]
        shown = [note for note in notes[1:] if note and not note.startswith("0 ")]
        return [("sidecars", "; ".join([notes[0], *shown]))]

    @property
    def problem(self) -> str:
        """Why the digests of the texts cannot be kept; empty where they are, or need not be."""
        if not self.counts["written"] or not self._texts.problem:
            return ""
        unknown = "digests of the texts cannot be kept, so --overwrite will take them for edited"
        return f"{unknown}: {self._texts.problem}"

    def own_name(self, image: str) -> str:
        """The name of an image's text if no other text has it."""
        return str(PurePosixPath(image).with_suffix(self._ending))

    def claim(self, image: str) -> str | None:
        """A free name for an image's text, or None if there is none that file systems allow.

        It is unique also on file systems that ignore case. If `a.jpg` has `a.txt`, `a.png` gets
        `a.png.txt`; so does an image where the text of an earlier run is another's.
        """
        for name in (self.own_name(image), image + self._ending):
            key = hash(unicodedata.normalize("NFC", name).casefold())
            is_short = len(os.fsencode(Path(name).name)) <= MAX_NAME_BYTES
            if key not in self._taken and is_short and not self._is_of_another(Path(name), image):
                self._taken.add(key)
                return name
        return None

    def write(self, name: str, answer: str | None, image: str, *, below: str | None = None) -> None:
        """Write an image's answer to the file, completely or not at all, or keep what exists.

        Folders of the name that are missing `below` that one are created. Raises OutputFailed.
        """
        outcome = self._kept_as(name, image)
        if outcome is None:
            text = "".join(map(encodable, (self._prepend, answer or "", self._append, "\n")))
            folder = below or os.path.dirname(name) or "."  # noqa: PTH120 - Path drops a leading ./
            leaf = os.path.relpath(name, below) if below else Path(name).name
            # before the text: a process that is killed in between leaves a text that is known
            self._texts.add(Path(name), image, text.encode())
            is_written = write_below(
                folder,
                leaf,
                text.encode(),
                token=self._token,
                hint=HINT,
                replace=self._overwrite,
            )
            outcome = "written" if is_written else "kept"
        self.counts[outcome] += 1

    def _kept_as(self, name: str, image: str) -> str | None:
        """`kept` or `edited` for a text that stays as it is; None for one that is written."""
        file = Path(name)
        if not os.path.lexists(file):
            return None
        if not self._overwrite:
            return "kept"
        is_folder = file.is_dir() and not file.is_symlink()  # writing it says that it is one
        return None if is_folder or self._texts.is_unchanged(file, image) else "edited"

    def _is_of_another(self, file: Path, image: str) -> bool:
        """Whether the file is the text of another image that exists."""
        if not os.path.lexists(file) or self._texts.is_of(file, image):
            return False
        names = (file.stem + ending for ending in ("", *ENDINGS))
        images = (file.with_name(name) for name in names)
        return any(self._texts.is_of(file, str(one)) and one.exists() for one in images)


class WrittenTexts:
    """Digests of the texts that pgcli wrote, so that those that a person edited are recognised.

    A file for each folder of texts is in `~/.local/state/pgcli/texts`, or below XDG_STATE_HOME, as
    folders of images are data. Several processes append to it. Where it cannot be written,
    `problem` says why.
    """

    def __init__(self) -> None:
        home = Path(os.environ.get("XDG_STATE_HOME", ""))
        if not home.is_absolute():  # other users could create an empty or relative one
            home = Path(os.path.expanduser("~/.local/state"))  # noqa: PTH111 - Path needs a home
        self._home = home / "pgcli" / "texts"
        self._folder = lru_cache(MAX_FOLDERS)(lambda folder: (set[str](), [0]))
        self.problem = "" if home.is_absolute() else "there is no home folder"

    def is_of(self, file: Path, image: str) -> bool:
        """Whether pgcli wrote the file as the text of this image, whatever is in it now."""
        return digest(file, image) in self._digests(file)

    def is_unchanged(self, file: Path, image: str) -> bool:
        """Whether the file is as pgcli wrote it. A link is not, nor what cannot be read."""
        if file.is_symlink():
            return False
        with suppress(OSError), open_regular(file) as opened:
            return digest(file, image, opened.read()) in self._digests(file)
        return False

    def add(self, file: Path, image: str, data: bytes) -> None:
        """Note what is about to be written. To be called before the file is written."""
        line = f"\n{digest(file, image)}\n{digest(file, image, data)}"
        record = self._record(file)
        try:
            record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with os.fdopen(os.open(record, flags, 0o600), "ab", buffering=0) as opened:
                opened.write(line.encode())
        except OSError as problem:
            self.problem = f"{problem.filename or record}: {problem.strerror}"

    def _digests(self, file: Path) -> set[str]:
        """The digests of a text's folder, also those that another process added meanwhile."""
        known, position = self._folder(os.path.realpath(file.parent))
        with suppress(OSError), open_regular(self._record(file)) as opened:
            opened.seek(position[0])
            data = opened.read()
            position[0] += len(data)
            known.update(data.decode("ascii", "replace").split())
        return known

    def _record(self, file: Path) -> Path:
        folder = os.fsencode(os.path.realpath(file.parent))
        return self._home / blake2b(folder, digest_size=16).hexdigest()


def digest(file: Path, image: str, data: bytes = b"") -> str:
    """A digest of the names of a text and its image, and of what is in it."""
    names = os.fsencode(f"{Path(image).name}/{file.name}/")
    return blake2b(names + data, digest_size=16).hexdigest()


def is_file(item: Item) -> bool:
    """Whether the item's image is a file of its own, beside which a text can be."""
    path = item.path
    if path is None or item.data is not None or item.span is not None:
        return False
    return url_scheme(path) is None and bool(PurePath(path).name)  # `.` and `/` are not images


def numbered(number: int, one: str, several: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {one if number == 1 else several}"
