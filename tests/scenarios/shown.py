"""What a scenario records of a file: lines that a person can read, without what varies."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from PIL import Image, ImageStat

#: Columns and keys whose values depend on the machine and the moment; null is shown.
VARYING = frozenset(
    "load_ms vision_ms prefill_ms decode_ms batch rows_per_second tokens_per_second per_second "
    "images_per_second wait_ms memory_mb seconds time begun started ended host pid pgcli".split()
)
LONGEST_LIST = 40  # numbers; longer lists, as of embeddings, are cut
JSON_KEYS_ONLY = frozenset({"run.json"})  # the record of a training run


@dataclass(frozen=True)
class Shown:
    """How a scenario shows files: its columns, and what it replaces in values and in lines."""

    columns: Sequence[str]
    value: Callable[[str], str]
    line: Callable[[str], str]

    def file_lines(self, file: Path) -> list[str]:
        """The lines that stand for a file."""
        if file.is_symlink():
            return [self.value(f"link to {file.readlink()}")]
        return self.data_lines(file.read_bytes(), file.name)

    def data_lines(self, data: bytes, name: str) -> list[str]:
        ending = Path(name).suffix.lower()
        if ending == ".parquet":
            return self.table_lines(data)
        if ending == ".tar":
            return self.archive_lines(data)
        if ending == ".safetensors":
            return tensor_lines(data)
        if ending == ".html":
            return [self.page_line(data.decode())]
        if picture := picture_line(data):
            return [picture]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return [f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()[:12]}"]
        if ending == ".json":
            return self.document_lines(json.loads(text), Path(name).name)
        return self.text_lines(text)

    def text_lines(self, text: str) -> list[str]:
        """JSON lines as their columns and rows, one JSON object by key, other text as its lines."""
        lines = text.removesuffix("\n").split("\n") if text else []
        try:
            rows = [json.loads(line) for line in lines]
        except ValueError:
            rows = []
        if rows and all(isinstance(row, dict) for row in rows):
            return self.row_lines(rows)
        if text.startswith("{\n"):
            return self.document_lines(json.loads(text), "")
        if text and not text.endswith("\n"):
            lines.append("(no newline at the end)")
        return [self.line(line) for line in lines]

    def row_lines(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Columns and rows; a line of columns stands before each row that has other ones."""
        lines: list[str] = []
        columns: list[str] = []
        for row in rows:
            if list(row) != columns:
                columns = list(row)
                lines.append(f"columns {' '.join(columns)}")
            lines.append(self.row_line(row))
        return lines

    def row_line(self, row: Mapping[str, Any]) -> str:
        return self.json({k: v for k, v in row.items() if not self.columns or k in self.columns})

    def json(self, value: Any, key: str = "") -> str:
        return json.dumps(self.plain(value, key), ensure_ascii=False, default=str)

    def plain(self, value: Any, key: str = "") -> Any:
        """A value without paths of this machine, timings and digits that rounding may change."""
        if key in VARYING and value is not None:
            return "#"
        if isinstance(value, dict):
            return {self.value(name): self.plain(inner, name) for name, inner in value.items()}
        if isinstance(value, (list, tuple)):
            inner = [self.plain(element) for element in value]
            cut = len(inner) > LONGEST_LIST and all(isinstance(one, float) for one in inner)
            return [*inner[:3], f"... {len(inner)} numbers"] if cut else inner
        if isinstance(value, float):
            return rounded(value)
        if isinstance(value, bytes):
            return " ".join(self.data_lines(value, ""))
        return self.value(value) if isinstance(value, str) else value

    def document_lines(self, value: Any, name: str) -> list[str]:
        """A line for each key of a JSON document, and for each element of a list below it."""
        if isinstance(value, list):
            return [self.json(element) for element in value]
        if name in JSON_KEYS_ONLY:
            return [f"keys {' '.join(value)}"]
        lines = []
        for key, inner in value.items():
            if isinstance(inner, list) and inner and isinstance(inner[0], dict):
                lines += [f"{key}:", *(f"  {self.json(element)}" for element in inner)]
            else:
                lines.append(f"{key}: {self.json(inner, key)}")
        return lines

    def table_lines(self, data: bytes) -> list[str]:
        """The types of a Parquet file's columns, the keys of its metadata, and its rows."""
        table = pq.read_table(io.BytesIO(data))
        fields = ", ".join(f"{field.name} {field.type}" for field in table.schema)
        fields = fields.replace("dictionary<values=string, indices=int32, ordered=0>", "category")
        keys = [key.decode() for key in table.schema.metadata or {}]
        public = sorted(key for key in keys if not key.startswith("pgcli."))
        rows = [self.row_line(row) for row in table.to_pylist()]
        return [f"schema {fields}", f"metadata {' '.join(public)}", *rows]

    def archive_lines(self, data: bytes) -> list[str]:
        lines = []
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                lines.append(f"member {member.name}:")
                if (inner := archive.extractfile(member)) is not None:
                    lines += [f"  {line}" for line in self.data_lines(inner.read(), member.name)]
        return lines

    def page_line(self, text: str) -> str:
        title = re.search(r"<title>(.*?)</title>", text, re.DOTALL)
        requests = len(re.findall(r"""(?:src|href)=["']?https?:""", text))
        images = len(re.findall(r"""["',](?:UklGR|iVBORw0|/9j/)""", text))  # WebP, PNG, JPEG
        total = re.search(r'"total":(\d+)', text)
        rows = int(total[1]) if total else len(re.findall(r'"id": ?"', text))
        name = self.value(title[1]) if title else "none"
        return f"page: title {name!r}, {rows} rows, {images} images, {requests} requests"


def rounded(value: float) -> float:
    """Three digits behind the point, of small numbers three that count."""
    return round(value, 3) if abs(value) >= 1 else float(f"{value:.3g}")


def tensor_lines(data: bytes) -> list[str]:
    """The counts and shapes of tensors; their values depend on the machine."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    kinds: dict[str, int] = {}
    for name, tensor in header.items():
        kind = re.sub(r"\d+", "N", name) + f" {tensor['dtype']} {tensor['shape']}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return [f"{len(header)} tensors", *(f"  {n} x {kind}" for kind, n in sorted(kinds.items()))]


def picture_line(data: bytes) -> str | None:
    """Kind, size, mode and the mean colour of each quarter; None for other files."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            kind, mode, (width, height) = image.format, image.mode, image.size
            image = image.convert("RGB")
    except (OSError, SyntaxError):
        return None
    middle_x, middle_y = width // 2, height // 2
    quarters = [
        (left, top, left + middle_x, top + middle_y)
        for top in (0, middle_y)
        for left in (0, middle_x)
    ]
    means = [
        "/".join(f"{mean:.0f}" for mean in ImageStat.Stat(image.crop(box)).mean) for box in quarters
    ]
    return f"{kind} {width}x{height} {mode}, quarters {' '.join(means)}"
