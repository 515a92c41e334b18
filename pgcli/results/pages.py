"""The shell of all pages, and the rows of result files as the script of the gallery reads them."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from pgcli.labels.columns import stated_size
from pgcli.output.reader import QUERY_COLUMNS, SIMILARITY, Row, query_column
from pgcli.records import CORNERS, TIMING_COLUMNS
from pgcli.results.image_locator import ImageRef
from pgcli.results.overlay import LabelColours, contrasting, svg_path
from pgcli.rle import read_mask
from pgcli.rows import LISTED, MAX_FLOAT, answer_digest, has_vectors
from pgcli.stores.files import open_regular
from pgcli.stores.writing import Target
from pgcli.text import encodable, printable


def clean_text(value: object) -> str | None:
    """The value as text with its line breaks, with control characters escaped."""
    if value is None:
        return None
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    if is_clean(value):
        return value
    lines = encodable(value).replace("\r\n", "\n").replace("\t", " ").split("\n")
    return "\n".join(map(printable, lines))


def clean(value: Any) -> Any:
    """A value of a row with its texts and numbers cleaned, at any depth."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return clean_number(value)
    if not isinstance(value, Mapping | list | tuple):
        return clean_text(value)
    if is_clean_value(value):
        return value
    if isinstance(value, Mapping):
        return {clean_line(name): clean(inner) for name, inner in value.items()}
    return [clean(inner) for inner in value]


def clean_line(value: object) -> str:
    """The value as one line with control characters escaped; None is empty."""
    text = "" if value is None else str(value)
    return text if is_clean(text) else printable(encodable(text))


def is_clean(text: str) -> bool:
    """Whether the text needs no cleaning: true for most, and fast."""
    return text.isascii() and text.isprintable()


def is_clean_value(value: object) -> bool:
    """Whether a list or an object needs no cleaning at any depth: true for most, and fast."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):  # a value that JSON does not have
        return False
    return "\\" not in text and "\x7f" not in text


def clean_number(value: object, digits: int = 6) -> float | int | None:
    """A finite number rounded to significant digits; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def as_list(value: object) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


#: What the first bytes of a page contain.
PAGE_MARK, PAGE_HEAD = b'<meta name="generator" content="pgcli">', 2000


def render_page(
    package: str,
    scripts: Sequence[str],
    data: Mapping[str, Any],
    *,
    title: str,
    parts: Iterable[tuple[str, str]] = (),
    policy: Sequence[str] = (),
) -> Iterator[str]:
    """The page in pieces, from the body, style and `scripts` in the folder `page` of a package.

    Its parts, JSON by names, come last, so that a browser shows the page while it loads them. No
    foreign value is markup: all are JSON in which no tag can begin.
    """
    style, script = page_assets(package, scripts)
    yield Template(asset("shell.html")).substitute(
        policy=escape(page_policy(package, scripts, policy)),
        title=escape(clean_line(title)),
        style=style,
        body=asset("page.html", package),
        data=inert(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        script=script,
    )
    for name, text in parts:
        yield f'<script type="application/json" id="{name}">{inert(text)}</script>\n'
    yield "</body>\n</html>\n"


def page_assets(package: str, scripts: Sequence[str]) -> tuple[str, str]:
    """The style and the script of a page."""
    code = "\n".join([asset("shell.js"), *(asset(f"{name}.js", package) for name in scripts)])
    style = asset("shell.css") + asset("page.css", package)
    return style, f'"use strict";\n(() => {{\n{code}\n}})();\n'


def page_policy(package: str, scripts: Sequence[str], more: Sequence[str] = ()) -> str:
    """The content security policy: this script alone, by its digest, and no requests."""
    style, script = map(digest, page_assets(package, scripts))
    sources = f"default-src 'none'; img-src data:; style-src {style}; script-src {script}"
    return "; ".join([sources, "base-uri 'none'", "form-action 'none'", *more])


def page_target(
    name: str | Path,
    option: str = "-o",
    *,
    inputs: Iterable[str | Path] = (),
    overwrite: bool = False,
) -> Target:
    """The target of an option that names a page; an existing page is replaced, an input never."""
    return Target(
        name=str(name),
        option=option,
        overwrite=overwrite or is_page(Path(name)),
        inputs=[*map(str, inputs)],
    )


def is_page(file: Path) -> bool:
    """Whether the file is a page of pgcli."""
    try:
        with open_regular(file) as opened:
            return PAGE_MARK in opened.read(PAGE_HEAD)
    except OSError:
        return False


def inert(text: str) -> str:
    """JSON escaped so that it cannot contain a tag or a comment in a script element."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str, package: str = "pgcli.results") -> str:
    """A file of the shell of all pages, or of the folder `page` of a package."""
    return files(package).joinpath("page", name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """The SHA-256 digest of a text as a content security policy writes it."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


#: Columns that are text, whatever another program wrote into them.
TEXTS = frozenset("id image task prompt answer finish model error error_message".split())
#: Columns that are numbers, and columns that are lists of objects.
NUMBERS = frozenset(("width", "height", "tokens", "logprob", *TIMING_COLUMNS, "batch"))
#: What the page adds to the columns of a row, in place of kept columns of these names.
FILE, IMAGE, DIGEST = "$file", "$image", "$digest"
RESERVED = {FILE, IMAGE, DIGEST, "$number", "$isWhole", "__proto__"}
SEARCH = "search"  # the task of rows of a search
#: The most rows of an image on a card: boxes are side by side, answers below one image.
MAX_BOXES, MAX_ANSWERS = 6, 12


@dataclass(frozen=True)
class ResultFile:
    """A result file: its name, the settings of its run, and the labels of its prompts.

    `source` is equal for files whose images have the same source, so that their rows share images.
    `absolute` returns the absolute path or the URL of an image; None where it is not known.
    `output` has the images in its input, or, of rows of a search, what `output_of` returns.
    """

    name: str
    settings: Sequence[tuple[str, str]] = ()
    labels: tuple[str, ...] = ()
    note: str = ""
    source: Hashable = ()
    absolute: Callable[[str], str | None] = lambda image: None
    output: Path = Path()
    output_of: Callable[[Row], Path] | None = None


class Cards:
    """The page's data except the images, collected row by row."""

    def __init__(self) -> None:
        self.images: list[ImageRef] = []
        self.rows: list[dict[str, Any]] = []
        self._files: list[dict[str, Any]] = []
        self._identities: list[str] = []  # what rows of an image have in common: the first's id
        self._ids: dict[str, str] = {}  # of image files, by their paths
        self._prompt_labels: set[str] = set()
        self._labels: dict[str, None] = {}  # of the boxes
        self._image_numbers: dict[Hashable, int] = {}

    def add(self, file: ResultFile, rows: Iterable[Row]) -> None:
        """Add the rows of a file."""
        number = len(self._files)
        self._prompt_labels.update(file.labels)
        for row in rows:
            path, output, source = None, file.output, file.source
            if file.output_of is None:
                path = file.absolute(str(row.get("image") or ""))
            else:
                source = output = file.output_of(row)
            if query_column(row) is not None:
                row = scored_row(row)
            columns, ref = page_row(row), ImageRef.of(row, output)
            id_ = columns["id"]
            self._identities.append(self._ids.setdefault(path, id_) if path else id_)
            key = path or (source, ref.index, ref.image)
            image = self._image_numbers.setdefault(key, len(self.images))
            if image == len(self.images):
                self.images.append(ref)
            for box in filter(is_box, columns.get("boxes", ())):
                if isinstance(label := box.get("label"), str):
                    self._labels[label] = None
            self.rows.append(columns | {FILE: number, IMAGE: image})
        settings = [[clean_line(name), clean_line(value)] for name, value in file.settings]
        self._files.append(
            {"name": clean_line(file.name), "settings": settings, "note": clean_line(file.note)}
        )

    def data(self) -> dict[str, Any]:
        """The JSON that the script reads."""
        colours = LabelColours(self.distinct_labels)
        grouping, cards = "file", None
        tasks, prompts = ([row.get(name) for row in self.rows] for name in ("task", "prompt"))
        files, images = ([row[name] for row in self.rows] for name in (FILE, IMAGE))
        if len(self._files) > 1:
            cards = group_cards(self._identities, zip(tasks, prompts, strict=True), files)
        elif SEARCH in tasks:
            grouping = "query"
        elif len({*zip(images, prompts, strict=True)}) > len({*images}):
            grouping = "image"
            has_boxes = any("boxes" in row for row in self.rows)
            cards = image_cards(images, MAX_BOXES if has_boxes else MAX_ANSWERS)
        return {
            "files": self._files,
            "labels": [[label, *label_colours(colours, label)] for label in self._labels],
            "rows": self.rows,
            "by": grouping,
            "cards": cards,
            "images": len(self.images),
        }

    @property
    def distinct_labels(self) -> tuple[str, ...]:
        """The labels of the runs' prompts, or of the boxes where there is no record of a run."""
        return tuple(self._prompt_labels or self._labels)


def scored_row(row: Row) -> Row:
    """A row of a search with the columns of a row of `score`: its query is the prompt."""
    query = row["query"] if row.get("query") is not None else f"group {row['group']}"
    return {
        **{name: row[name] for name in row if name not in (*QUERY_COLUMNS, SIMILARITY)},
        "image": row["image"] or "",
        "task": SEARCH,
        "prompt": str(query),
        "scores": [{"text": row.get("text") or "similarity", "cosine": row[SIMILARITY]}],
        "error": None,
    }


def page_row(row: Row) -> dict[str, Any]:
    """The row without control characters, values of other types than their columns', and nulls.

    An embedding is described, and masks are paths for the script to draw. A row that edits can
    name has the digest of its answer.
    """
    columns: dict[str, Any] = {}
    for name, value in row.items():
        if name == "embedding" and isinstance(value, list):
            columns["answer"] = f"embedding of {len(value):,} values"
        elif name == "embedding" and has_vectors(value):
            columns["answer"] = "the vectors of a page"
        elif name == "masks":
            columns["masks"] = [mask_path(mask, row) for mask in as_list(value)]
        elif name == "boxes":
            if as_list(value):
                columns["boxes"] = clean(value)
        elif name in NUMBERS:
            columns[name] = clean_number(value)
        elif name in LISTED:
            if entries := [clean(x) for x in as_list(value) if isinstance(x, Mapping)]:
                columns[name] = entries
        elif value is not None and name not in RESERVED:
            columns[clean_line(name)] = clean_text(value) if name in TEXTS else clean(value)
    if not all(columns.get(side) and columns[side] > 0 for side in ("width", "height")):
        columns |= {"width": None, "height": None}
    columns["id"] = columns.get("id", "")
    index = row.get("index")
    is_named = isinstance(index, int) and 0 <= index < 2**53
    if is_named and row.get("answer") is not None and row.get("error") is None:
        columns[DIGEST] = answer_digest(row)
    return {name: value for name, value in columns.items() if value is not None}


def mask_path(value: Any, row: Row) -> str | None:
    """The contours of a mask as a path; None for one that cannot be read, or of another size."""
    size = stated_size(row)
    try:
        mask = read_mask(value)
        is_drawn = mask is not None and size in (None, mask.size[::-1])
        return svg_path(mask) if mask is not None and is_drawn else None
    except ValueError:
        return None


def is_box(value: object) -> bool:
    """Whether the page draws a value as a box: its corners are finite numbers in JavaScript."""
    if not isinstance(value, dict):
        return False
    corners: list[Any] = [value.get(name) for name in CORNERS]
    return {*map(type, corners)} <= {int, float} and max(map(abs, corners)) <= MAX_FLOAT


def group_cards(
    images: Iterable[Hashable], questions: Iterable[Hashable], files: Iterable[int]
) -> list[list[int]]:
    """Indices of the rows of several files that share a card, in order.

    Rows of the same image are matched by question if another file has it too, else by order.
    """
    keys = [*zip(images, questions, files, strict=True)]
    num_files = Counter((image, question) for image, question, _ in {*keys})
    unmatched: Counter[Hashable] = Counter()
    repeated: Counter[Hashable] = Counter()
    cards: dict[Hashable, list[int]] = {}
    for index, (image, question, file) in enumerate(keys):
        key: Hashable
        if num_files[image, question] > 1:
            key = (image, "question", question, repeated[image, question, file])
            repeated[image, question, file] += 1
        else:
            key = (image, "order", unmatched[image, file])
            unmatched[image, file] += 1
        cards.setdefault(key, []).append(index)
    return [*cards.values()]


def image_cards(images: Iterable[int], most: int) -> list[list[int]]:
    """Indices of the rows of a file that share a card: those of an image, at most so many."""
    cards: list[list[int]] = []
    latest: dict[int, list[int]] = {}
    for index, image in enumerate(images):
        card = latest.get(image)
        if card is None or len(card) == most:
            card = latest[image] = []
            cards.append(card)
        card.append(index)
    return cards


def label_colours(colours: LabelColours, label: str) -> tuple[str, str]:
    """The colour of a label, and one that contrasts with it, as CSS."""
    colour = colours.of(label)
    first, second = ("#" + "".join(f"{x:02x}" for x in c) for c in (colour, contrasting(colour)))
    return first, second
