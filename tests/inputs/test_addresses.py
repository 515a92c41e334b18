"""Files at URLs are the items of a local folder; listings are compared as files are."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import NoInputError, UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import NameFilter
from pgcli.inputs.parquet import PROCESS
from pgcli.inputs.paths import Glob, expand_source
from pgcli.stores import Reader
from tests.inputs.items import reloaded
from tests.support.stores import FILES, IMAGES, JPEG, S3, Files, locate_store, parquet, serve


@pytest.fixture
def s3(monkeypatch) -> Iterator[Files]:
    """The files of an S3 server that this process reads, and the one that reads Parquet."""
    lines = [{"image": name} for name in ("z.jpg", "a/é#?%41.png", "no.png")]
    more = {"rows.jsonl": "\n".join(map(json.dumps, lines)).encode() + b"\n", "notes.txt": b"text"}
    files = {f"images/{name}": data for name, data in FILES.items()}
    files |= {f"images/photos/{name}": data for name, data in more.items()}
    files["images/sets/y.tar.gz"] = gzip.compress(FILES["sets/x.tar"])
    with serve(S3, files) as endpoint:
        for name, value in locate_store("s3", endpoint).environment.items():
            monkeypatch.setenv(name, value)
        PROCESS.close()
        yield files
    PROCESS.close()


def scanned(*names: str, known: Inventory | None = None, **options: Any) -> Inventory:
    return Inventory.scan(names, ReadOptions(url_reader=Reader(), **options), known)


def test_folder_pattern_and_tables_of_a_store_are_read(s3, tmp_path):
    found = list(scanned("s3://images/photos"))
    assert [item.id for item in found] == sorted(IMAGES)
    assert [item.path for item in found] == [
        f"s3://images/photos/{name}" for name in sorted(IMAGES)
    ]
    assert [item.id for item in scanned("s3://images/photos/**/*.jpg")] == [
        "s3://images/photos/a-b.jpg",
        "s3://images/photos/z.jpg",
    ]
    lines = scanned("s3://images/photos/rows.jsonl")
    assert [item.path for item in lines] == [
        "s3://images/photos/z.jpg",
        "s3://images/photos/a/é#?%41.png",
        "s3://images/photos/no.png",
    ]
    for archive in ("x.tar", "y.tar.gz"):
        first, second = scanned(f"s3://images/sets/{archive}", keep=("n",), optional_fields=("n",))
        assert (first.fields, first.span, second.data) == ({"n": 1}, None, JPEG)
        assert first.data is not None


def test_parquet_at_an_address_is_read_by_the_process(s3, tmp_path):
    s3["images/t/m.parquet"] = parquet(20)
    (tmp_path / "m.parquet").write_bytes(parquet(20))
    inventory = scanned("s3://images/t/m.parquet", keep=("label",))
    here = Inventory.scan([str(tmp_path / "m.parquet")], ReadOptions(keep=("label",)))
    there = list(inventory)
    assert [(i.id, i.data, i.kept) for i in there] == [(i.id, i.data, i.kept) for i in here]
    assert inventory.kept_table(3, 9) == here.kept_table(3, 9)
    options = ReadOptions(url_reader=Reader(), keep=("label",))
    assert list(reloaded(inventory, ["s3://images/t/m.parquet"], options)) == there


def test_new_images_come_after_recorded_images(s3):
    for name in ("s3://images/photos", "s3://images/photos/*.jpg"):
        before = scanned(name)
        s3["images/photos/0.jpg"] = JPEG
        after = scanned(name, known=before)
        late = "s3://images/photos/0.jpg"
        assert [item.path for item in after] == [*(item.path for item in before), late]
        del s3["images/photos/0.jpg"]
        assert scanned(name, known=after).gone == (after.total or 0) - len(list(before))


def test_table_at_an_address_of_another_size_is_a_change(s3):
    before = scanned("s3://images/photos/rows.jsonl")
    assert scanned("s3://images/photos/rows.jsonl", known=before).changes(lambda _: True) is None
    s3["images/photos/rows.jsonl"] += b'{"image": "more.png"}\n'
    change = scanned("s3://images/photos/rows.jsonl", known=before).changes(lambda _: True)
    assert change.name == "s3://images/photos/rows.jsonl"


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("s3://images/none", UsageError, "s3://images/none does not exist"),
        ("s3://nobucket/*.png", UsageError, "URL does not exist"),
        ("s3://images/photos/*.gif", NoInputError, "nothing matches"),
        ("s3://images/photos/notes.txt", UsageError, "neither an image nor a manifest"),
        ("s3://images/photos/broken.parquet", UsageError, "not a readable Parquet"),
        ("abfs://box/x.png", UsageError, "abfs URLs are not supported"),
        ("data:image/png;base64,AAAA", UsageError, "data"),
        ("https://host/", UsageError, "does not name a file"),
        ("https://user:secret@host/x.png", UsageError, "user name or a password"),
    ],
)
def test_address_that_cannot_be_read_is_a_usage_error(s3, name, code, message):
    s3["images/photos/broken.parquet"] = b"x" * 100
    with pytest.raises(code) as problem:
        scanned(name)
    assert message in str(problem.value)
    assert "secret" not in str(problem.value)
    assert problem.value.hint


def test_no_request_is_sent_if_urls_are_not_allowed(monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: pytest.fail("a name was resolved"))
    for name in ("s3://images/photos", "hf://datasets/a/b", "https://user:secret@host/x.png"):
        with pytest.raises(UsageError) as problem:
            Inventory.scan([name])
        assert "--allow-urls" in problem.value.hint
        assert "secret" not in str(problem.value)


def test_paths_of_a_manifest_at_an_address_stay_in_its_folder(s3):
    names = ["z.jpg", "a/../z.jpg", "./z.jpg", "../x.png", "a/../../x.png", "/etc/passwd"]
    names += ["file:///etc/passwd", "..", "a\0b", "ftp://host/x.png", "s3://images/photos/z.jpg"]
    lines = "".join(json.dumps({"image": name}) + "\n" for name in names)
    s3["images/photos/odd.jsonl"] = lines.replace("\\u0000", "%00").encode()
    found = list(scanned("s3://images/photos/odd.jsonl"))
    codes = [item.fault.code if item.fault else None for item in found]
    out = "path_not_allowed"
    assert codes == [None] * 3 + [out] * 5 + [None, "url_blocked", None]
    good = {item.path for item in found if item.fault is None and "%00" not in item.id}
    assert good == {"s3://images/photos/z.jpg"}
    assert all(item.path is None for item in found if item.fault)


def test_folder_with_a_key_that_cannot_be_expressed_is_an_error(s3):
    s3.clear()
    s3 |= dict.fromkeys(("images/p/b//c.png", "images/p/z.png"), JPEG)
    for source in ("s3://images/p", "s3://images/p/**/*.png"):
        with pytest.raises(UsageError, match=r"p/b//c\.png"):
            scanned(source)
    assert scanned("s3://images/p/z.png").total == 1
    with pytest.raises(UsageError, match="cannot read an object of this name") as problem:
        scanned("s3://images/p/b//c.png")
    assert problem.value.hint == "rename the object"


def test_store_and_folder_hide_the_same_names_and_delta_tables(s3):
    names = (
        "part.parquet",
        "_day=2/part.parquet",
        "_temporary/0/a.parquet",
        "_temporary/0/b.parquet",
    )
    for name in (*names, "_SUCCESS", ".hidden/part.parquet"):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"image": [b"x"], "id": [name]}), sink)
        s3[f"images/lake/{name}"] = bytes(sink.getvalue())
    inventory = scanned("s3://images/lake")
    assert sorted(item.id for item in inventory) == sorted(names[:2])
    assert inventory.ignored == {"(_)": 2}
    included = scanned("s3://images/lake", names=NameFilter(include=("_temporary/*",)))
    assert [item.id for item in included] == list(names[2:])
    assert scanned("s3://images/lake/**/*.parquet").total == 2
    assert scanned("s3://images/lake/_temporary/**").total == 2
    s3["images/lake/_delta_log/00000000000000000000.json"] = b"{}"
    with pytest.raises(UsageError, match="s3://images/lake is a Delta table"):
        scanned("s3://images/lake")
    assert scanned("s3://images/lake/*.parquet").total == 1
    assert scanned("s3://images/lake/part.parquet").total == 1


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.png", "x.png", True),
        ("*.png", "a/x.png", False),
        ("**", "a/b/x.png", True),
        ("**/*.png", "x.png", True),
        ("**/*.png", "a/b/x.png", True),
        ("**/*.png", ".h/x.png", False),
        ("*.png", ".x.png", False),
        (".*.png", ".x.png", True),
        ("a/**/x.png", "a/x.png", True),
        ("a/**/**/x.png", "a/b/c/x.png", True),
        ("a/*/x.png", "a/b/c/x.png", False),
        ("**/b/**", "a/b/c/d.png", True),
        ("**/b/**", "a/b", False),
        ("[ab]?.png", "b1.png", True),
    ],
)
def test_pattern_of_a_store_matches_as_a_local_one(pattern, path, matches, tmp_path):
    assert bool(Glob(pattern).path(path)) == matches
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    assert (path in expand_source(pattern)[1:]) == matches
