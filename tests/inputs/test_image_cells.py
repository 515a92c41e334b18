"""Cells of the image column: lists, structs with more fields, base64 and `data:` addresses."""

import base64
import json
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import ManifestError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import NameFilter
from pgcli.inputs.rows import image_in_text
from tests.inputs.items import ids, items
from tests.support.awkward import drawing, encoded

PNG, JPEG = encoded(drawing(), "PNG"), encoded(drawing(), "JPEG")
BASE64 = base64.b64encode(PNG).decode()
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
MORE_FIELDS = [
    ("width", pa.int32()),
    ("taken", pa.timestamp("us")),
    ("tags", pa.list_(pa.string())),
]
MORE = pa.struct([*MORE_FIELDS, ("path", pa.large_string()), ("bytes", pa.large_binary())])
ALL_NAMES = ReadOptions(names=NameFilter(include=("*",)))


def cell(data: bytes | None = None, path: str | None = None) -> dict[str, Any]:
    return {"bytes": data, "path": path}


#: The id, the bytes or path, and the code of the error of each cell.
Expected = list[tuple[str, bytes | str | None, str | None]]
PATHS: Expected = [("a.png", "a.png", None), ("b.png", "b.png", None)]
CELLS: dict[str, tuple[pa.Array, Expected]] = {
    "lists of structs": (
        pa.array(
            [[cell(PNG, "a.png")], [cell(path="b.png")], [cell(JPEG)], [], [cell(PNG)] * 2, None],
            pa.list_(STRUCT),
        ),
        [
            ("a.png", PNG, None),
            ("b.png", "b.png", None),
            ("2", JPEG, None),
            ("3", None, "missing"),
            ("4", None, "unsupported_format"),
            ("5", None, "missing"),
        ],
    ),
    "lists of paths": (pa.array([["a.png"], ["b.png"]]), PATHS),
    "fixed lists": (pa.array([["a.png"], ["b.png"]], pa.list_(pa.string(), 1)), PATHS),
    "large lists of structs": (
        pa.array([[{"bytes": PNG, "width": 3}]], pa.large_list(MORE)),
        [("0", PNG, None)],
    ),
    "list views": (pa.array([["a.png"], ["b.png"]], pa.list_view(pa.string())), PATHS),
    "more fields": (
        pa.array([{**cell(PNG, "a.png"), "width": 3, "tags": ["x"]}, cell(path="b.png")], MORE),
        [("a.png", PNG, None), ("b.png", "b.png", None)],
    ),
    "bytes and more": (pa.array([{"bytes": JPEG, "format": "JPEG"}]), [("0", JPEG, None)]),
    "dictionary of bytes": (pa.array([PNG, JPEG, PNG]).dictionary_encode(),
                            [("0", PNG, None), ("1", JPEG, None), ("2", PNG, None)]),
    "views of base64": (pa.array([BASE64, "b.png"], pa.string_view()),
                        [("0", PNG, None), ("b.png", "b.png", None)]),
    "structs of base64": (pa.array([{"bytes": BASE64, "path": "a.png"}]), [("a.png", PNG, None)]),
}  # fmt: skip


def seen(name: str, reading: ReadOptions) -> Expected:
    return [
        (item.id, item.data or item.path, item.fault.code if item.fault else None)
        for item in items(name, reading=reading)
    ]


@pytest.mark.parametrize("reading", [ReadOptions(), ALL_NAMES], ids=["all", "names"])
@pytest.mark.parametrize("kind", CELLS)
def test_every_shape_of_an_image_is_read(kind, reading):
    values, expected = CELLS[kind]
    pq.write_table(pa.table({"image": values}), "m.parquet")
    assert seen("m.parquet", reading) == expected
    if not pa.types.is_string_view(values.type) and kind != "dictionary of bytes":
        rows = [{"image": value} for value in values.to_pylist()]
        text = json.dumps(rows, default=lambda value: base64.b64encode(value).decode())
        Path("m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in json.loads(text)))
        assert seen("m.jsonl", reading) == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([{"url": "a.png"}], "struct<url: string>"),
        ([[["a.png"]]], "list<element: list<element: string>>"),
    ],
)
def test_other_shapes_are_rejected_with_their_type(values, kind):
    pq.write_table(pa.table({"image": values}), "m.parquet")
    with pytest.raises(ManifestError, match=f"neither a path nor bytes, but {kind}"):
        Inventory.scan(["m.parquet"])
    Path("m.jsonl").write_text(json.dumps({"image": values[0]}))
    with pytest.raises(ManifestError, match="line 1: the image in 'image' is neither"):
        Inventory.scan(["m.jsonl"])


@pytest.mark.parametrize(
    "text",
    [
        BASE64,
        BASE64.rstrip("="),
        base64.encodebytes(PNG).decode(),
        base64.urlsafe_b64encode(PNG).decode(),
        f"data:image/png;base64,{BASE64}",
        f"data:;base64, {base64.encodebytes(PNG).decode()}",
        "data:image/png;base64," + BASE64.replace("+", "%2B").replace("/", "%2F"),
        "data:image/png," + "".join(f"%{byte:02x}" for byte in PNG),
    ],
)
def test_text_may_be_the_image(text):
    assert image_in_text(text) == PNG
    Path("m.jsonl").write_text(json.dumps({"image": text}))
    Path("m.csv").write_text('image\n"{}"\n'.format(text.replace('"', '""')), newline="")
    for name in ("m.jsonl", "m.csv"):
        (item,) = items(name)
        assert (item.id, item.image, item.data, item.path) == ("0", name, PNG, None)


@pytest.mark.parametrize("write", [bytes.hex, str])
def test_hexadecimal_and_printed_bytes_fail_one_row(write):
    pandas.DataFrame({"image": [write(PNG), "b.png"]}).to_csv("m.csv", index=False)
    first, second = items("m.csv")
    fault = first.fault or decode(first, ImageSpec(8), ImageLimits()).fault
    assert fault is not None
    assert fault.code in ("missing", "io_error", "not_an_image")
    assert second.id == "b.png"


def test_text_that_base64_could_be_is_a_path():
    names = ["abcd", "photos", "a" * 200, "QUJD" * 30, f"{'deep/' * 900}file", BASE64[:80] + ".png"]
    names += ["iVBORw0KGgo=", "9j/4AAQSkZJRg", "a-b_c/d-e", "IMG0001"]
    assert [image_in_text(name) for name in names] == [None] * len(names)
    Path("m.jsonl").write_text("".join(json.dumps({"image": name}) + "\n" for name in names))
    assert ids("m.jsonl") == names


def test_base64_of_another_file_is_bytes():
    """Their decoding says what they are; as a path they would be missing, with an id as long."""
    other = base64.b64encode(b"\0\0\0\x18ftypheic" + bytes(range(256)) * 40).decode()
    Path("m.csv").write_text(f"image\n{other}\n")
    assert items("m.csv")[0].data == base64.b64decode(other)


def test_invalid_data_addresses_are_errors_of_their_rows():
    cells = ["data:image/png;base64", "data:image/png;base64,!", "data:image/png,", "a.png"]
    Path("m.jsonl").write_text("".join(json.dumps({"image": cell}) + "\n" for cell in cells))
    assert seen("m.jsonl", ReadOptions()) == [
        ("0", None, "decode_failed"),
        ("1", None, "decode_failed"),
        ("2", None, "missing"),
        ("a.png", "a.png", None),
    ]
