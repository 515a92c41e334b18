"""Plug-ins: small formats and a metric, and packages with entry points for them."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
import pytest
from PIL import Image

from pgcli import registry
from pgcli.evaluation.measures import JoinedRow, Measure, Metric, mean
from pgcli.inputs.lines import LineTable
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledImage,
    LabelledObject,
    Labels,
    LabelSettings,
)
from pgcli.output.tables import TableFormat
from pgcli.records import Box


class ListTable(LineTable):
    """A manifest: the path of an image on each line."""

    def values(self, line: bytes) -> dict[str, Any]:
        try:
            return {self.image_column: line.decode().strip()}
        except UnicodeDecodeError as problem:
            raise ValueError("it is not UTF-8") from problem


def arrow_batches(
    file: BinaryIO, columns: Sequence[str] | None, rows: int
) -> Iterator[pyarrow.RecordBatch]:
    """The written batches, split into parts of at most so many rows."""
    with pyarrow.ipc.open_stream(file) as stream:
        names = [name for name in stream.schema.names if columns is None or name in columns]
        for batch in stream:
            for start in range(0, len(batch), rows):
                yield batch.select(names).slice(start, rows)


#: An output format: a stream of Arrow tables.
ARROW = TableFormat(pyarrow.ipc.new_stream, pyarrow.ipc.read_schema, arrow_batches)


def contains(answer: str, truth: str) -> float:
    """1 if the answer contains the true one, ignoring case, else 0."""
    return float(truth.strip().lower() in answer.lower())


def measure_contains(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows with an answer that contains a true one."""
    return [mean("contains", [row.best(contains) for row in rows])]


CONTAINS = Metric("answers", measure_contains)


def read_whole_images(file: Path, settings: LabelSettings) -> Labels:
    """An import format: each line has a label and an image, with a box of the whole image."""
    images = []
    for line in file.read_text().splitlines():
        label, image = line.split()
        path = str(settings.root / image)
        width, height = Image.open(path).size
        known = LabelledObject(Box(label, 0, 0, width, height))
        images.append(LabelledImage(image, path, objects=(known,), size=(width, height)))
    return Labels(images)


WHOLE = LabelFormat(read_whole_images, lambda file: file.suffix == ".whole")


def install_plugins(plugins: Mapping[str, str], patch: pytest.MonkeyPatch | None = None) -> None:
    """Install a package with entry points, such as `{"outputs .arrows": "module:NAME"}`."""
    patch = patch or pytest.MonkeyPatch()
    site = Path(tempfile.mkdtemp())
    info = site / "pgcli_plugins-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pgcli-plugins\nVersion: 1.0\n")
    lines = []
    for key, target in plugins.items():
        group, _, name = key.partition(" ")
        lines += [f"[pgcli.{group}]", f"{name} = {target}"]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    patch.syspath_prepend(str(site))
    patch.setattr(registry, "_plugins", cache(registry._plugins.__wrapped__))


def install_arrows(before: Callable[[], object] = lambda: None) -> None:
    """Install the output format, then call the function, in a separate process."""
    install_plugins({"outputs .arrows": "tests.support.plugins:ARROW"})
    before()
