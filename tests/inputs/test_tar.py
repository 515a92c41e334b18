"""Archives and data sets as sources: samples are rows, and hostile members cost one row."""

import bz2
import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.errors import ManifestError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import NameFilter
from tests.inputs.items import data_of, faults, ids, items
from tests.support.awkward import drawing, encoded, tar_of
from tests.support.runs import processor_time_below

JPEG, PNG = encoded(drawing(), "JPEG"), encoded(drawing(), "PNG")


def tar(*members: tuple[str, bytes], name: str = "x.tar", kind: str = "") -> str:
    Path(name).write_bytes(tar_of(members, kind))
    return name


def special(change: Callable[[tarfile.TarInfo], None], name: str = "odd.jpg") -> str:
    """An archive of one member whose header is changed, between two valid ones."""
    with tarfile.open("x.tar", "w") as archive:
        for member in ("a.jpg", name, "z.jpg"):
            header = tarfile.TarInfo(member)
            header.size = len(JPEG)
            data: io.BytesIO | None = io.BytesIO(JPEG)
            if member == name:
                change(header)
                data = data if header.size == len(JPEG) and header.isreg() else None
            archive.addfile(header, data)
    return "x.tar"


@pytest.mark.parametrize(("name", "kind"), [("x.tar", ""), ("x.tar.gz", "gz"), ("X.TGZ", "gz")])
def test_samples_are_rows_with_their_texts_as_columns(name, kind):
    tar(
        ("a/01.jpg", JPEG),
        ("a/01.json", b'{"prompt": "what?", "city": "Rome"}'),
        ("a/01.txt", "gr\u00fcn".encode()),
        ("a/02.png", PNG),
        ("a/02.json", b'{"prompt": "who?", "city": "Oslo"}'),
        ("a/02.txt", b"red"),
        name=name,
        kind=kind,
    )
    reading = ReadOptions(requires_prompts=True, keep=("city", "txt"))
    first, second = items(name, reading=reading)
    assert first.id == first.image == f"{name}/a/01.jpg"
    assert (data_of(first), data_of(second)) == (JPEG, PNG)
    assert (first.prompts, second.prompts) == (("what?",), ("who?",))
    assert first.kept == {"city": "Rome", "txt": "gr\u00fcn"}
    assert second.kept == {"city": "Oslo", "txt": "red"}
    is_local = name == "x.tar"  # the worker that decodes it reads the span of the file
    assert (first.path, first.data is None) == ("x.tar" if is_local else None, is_local)


def test_json_id_names_a_sample():
    tar(("1.jpg", JPEG), ("1.json", b'{"id": "x"}'), ("2.json", b'{"id": "y"}'), ("2.jpg", JPEG))
    assert ids("x.tar") == ["x", "y"]


@pytest.mark.parametrize("bad", ["{}", "[1]", "true"])
def test_invalid_sample_id_is_rejected_in_a_named_column(bad):
    tar(("1.jpg", JPEG), ("1.json", f'{{"id": {bad}, "no": {bad}}}'.encode()))
    assert ids("x.tar") == ["x.tar/1.jpg"]
    with pytest.raises(ManifestError, match="neither text nor a number"):
        Inventory.scan(["x.tar"], ReadOptions(id_column="no"))


def test_members_without_an_image_are_skipped():
    tar(
        ("README.md", b"# hi"),
        ("._1.jpg", b"rubbish of a mac"),
        ("1.jpg", JPEG),
        ("1.seg.npy", PNG),
        ("1.pickle", b"\x80\x04cos\nsystem\n"),
        ("1.pyd", b"\x80\x04"),
        ("2.txt", b"no image"),
        (".hidden/3.jpg", JPEG),
        ("deep/nested.tar", b"\0" * 1024),
        ("4.JPEG", JPEG),
    )
    assert ids("x.tar") == ["x.tar/1.jpg", "x.tar/4.JPEG"]


def test_folder_of_archives_is_a_data_set():
    Path("set/deep.tar/more").mkdir(parents=True)
    for name, kind in (("a.tar", ""), ("deep.tar/b.tar.gz", "gz"), ("deep.tar/more/C.TGZ", "gz")):
        tar(("0.jpg", JPEG), name=f"set/{name}", kind=kind)
    Path("set/README.md").write_text("hi")
    Path("set/rows.csv").write_text("image\n")
    Path("set/notes.gz").write_bytes(b"")
    source = Inventory.scan(["set"])
    named = ["set/a.tar", "set/deep.tar/b.tar.gz", "set/deep.tar/more/C.TGZ"]
    assert [item.id for item in source] == [f"{name}/0.jpg" for name in named]
    assert source.ignored == {".md": 1, ".csv": 1, ".gz": 1}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda header: setattr(header, "name", "/etc/odd.jpg"), "path_not_allowed"),
        (lambda header: setattr(header, "name", "../odd.jpg"), "path_not_allowed"),
        (lambda header: setattr(header, "type", tarfile.SYMTYPE), "not_a_regular_file"),
        (lambda header: setattr(header, "type", tarfile.LNKTYPE), "not_a_regular_file"),
        (lambda header: setattr(header, "type", tarfile.CHRTYPE), "not_a_regular_file"),
        (lambda header: setattr(header, "type", tarfile.FIFOTYPE), "not_a_regular_file"),
        (lambda header: setattr(header, "size", 0), "not_an_image"),
    ],
)
def test_hostile_member_fails_one_row(change, code):
    def changed(header: tarfile.TarInfo) -> None:
        change(header)
        if header.type != tarfile.REGTYPE:
            header.size, header.linkname = 0, "/etc/passwd"

    assert faults(special(changed)) == [None, code, None]


def test_member_above_the_size_limit_is_not_read():
    with Path("x.tar").open("wb") as file:
        header = tarfile.TarInfo("big.jpg")
        header.size = 300 * 2**20
        file.write(header.tobuf())
        file.seek(header.size, os.SEEK_CUR)
        header = tarfile.TarInfo("small.jpg")
        header.size = len(JPEG)
        file.write(header.tobuf() + JPEG.ljust(-(-len(JPEG) // 512) * 512, b"\0") + bytes(1024))
    before = psutil.Process().memory_info().rss
    assert faults("x.tar") == ["too_large", None]
    assert psutil.Process().memory_info().rss - before < 100 * 2**20


def test_compression_bomb_is_rejected_before_unpacking():
    with gzip.open("x.tar.gz", "wb", compresslevel=9) as file:
        header = tarfile.TarInfo("bomb.jpg")
        header.size = 4 * 2**30
        file.write(header.tobuf())
        zeros = bytes(2**20)
        for _ in range(300):
            file.write(zeros)
    with processor_time_below(100), pytest.raises(ManifestError, match="200 times its size"):
        Inventory.scan(["x.tar.gz"])


def test_header_of_gigabytes_is_rejected():
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**32
    with Path("x.tar").open("wb") as file:
        file.write(header.tobuf())
        file.truncate(2**32 + 4096)
    with pytest.raises(ManifestError, match="a header of"):
        Inventory.scan(["x.tar"])


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_archive_is_rejected(name, share):
    noise = os.urandom(5000)
    tar(
        *((f"{n}.jpg", noise) for n in range(20)),
        name=name,
        kind="gz" if name.endswith("gz") else "",
    )
    size = Path(name).stat().st_size
    with open(name, "r+b") as file:
        file.truncate(int(size * share))
    with pytest.raises(ManifestError, match=name):
        Inventory.scan([name])


def test_damaged_header_within_an_archive_is_rejected():
    tar(*((f"{n}.jpg", JPEG) for n in range(5)))
    data = bytearray(Path("x.tar").read_bytes())
    at = data.index(b"3.jpg")
    data[at : at + 5] = b"\xff\xfe\xfd\xfc\xfb"
    Path("x.tar").write_bytes(data)
    with pytest.raises(ManifestError, match="after member 3: the archive is damaged"):
        Inventory.scan(["x.tar"])


@pytest.mark.parametrize("kind", ["", "gz"])
@pytest.mark.parametrize("appended", ["archive", "bytes"])
def test_data_behind_the_end_of_an_archive_are_not_dropped(kind, appended):
    """As `cat a.tar b.tar` makes them; readers stop at the end of the first archive."""
    name = "x.tar.gz" if kind else "x.tar"
    both = tar_of([("a.png", PNG)], kind), tar_of([("b.png", PNG)], kind)
    rest = gzip.compress(b"rest") if kind else b"rest"
    Path(name).write_bytes(both[0] + (both[1] if appended == "archive" else rest))
    with pytest.raises(
        ManifestError, match=r"after member 1: other data follow the end"
    ) as refused:
        Inventory.scan([name])
    assert "tar --concatenate" in refused.value.hint


def test_archive_of_another_kind_is_named():
    archive = tar_of([("a.png", PNG)])
    for name, data, message in [
        ("x.tar", gzip.compress(archive), "x.tar is not an uncompressed .tar archive: "),
        ("x.tgz", archive, "x.tgz is not a .tar.gz archive: "),
        ("x.tar", bz2.compress(archive), "x.tar is not an uncompressed .tar archive: "),
        ("x.tar.gz", b"PK\3\4" * 300, "x.tar.gz is not a .tar.gz archive: "),
    ]:
        Path(name).write_bytes(data)
        with pytest.raises(ManifestError) as refused:
            Inventory.scan([name])
        assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "The sample's .json is not valid JSON (Expecting property name"),
        (b"\xff", "The sample's .json is not UTF-8."),
        (b"[" * 5000 + b"]" * 5000, "The sample's .json is nested too deeply."),
        (b'{"a": 1, "a": 2}', "The sample's .json has a duplicate key."),
        (b'{"a": "\\ud800"}', "The sample's .json has half of a surrogate pair."),
        (b'{"a": ' + b"9" * 5000 + b"}", "The sample's .json has a number of too many digits."),
        (b" " * (2**24 + 1), "The sample's .json is longer than 16 MiB."),
    ],
)
def test_broken_text_fails_one_row(data, message):
    tar(("1.jpg", JPEG), ("1.json", data), ("2.jpg", JPEG))
    first, second = items("x.tar")
    assert first.fault.message.startswith(message)
    assert first.fault.code in ("decode_failed", "too_large")
    assert (first.id, first.data, second.fault) == ("x.tar/1.jpg", None, None)


@pytest.mark.parametrize(
    "data", [b'{"similarity": NaN, "far": -Infinity}', b"[1, 2]", b'"a text"', b"null", b"NaN"]
)
def test_json_with_nan_or_without_columns_is_accepted(data):
    tar(("1.jpg", JPEG), ("1.json", data), ("2.jpg", JPEG), ("2.json", b'{"similarity": 0.5}'))
    first, second = items("x.tar", reading=ReadOptions(keep=("similarity",)))
    assert (first.fault, data_of(first), first.kept) == (None, JPEG, {"similarity": None})
    assert second.kept == {"similarity": 0.5}


@pytest.mark.parametrize(
    ("region", "expected"), [("[1, 2, 3, 4]", (1, 2, 3, 4)), ('"1,2,3,4"', (1, 2, 3, 4))]
)
def test_sample_may_have_a_region(region, expected):
    tar(("1.jpg", JPEG), ("1.json", f'{{"region": {region}}}'.encode()))
    (item,) = items("x.tar")
    assert item.region == expected
    with pytest.raises(ManifestError, match=r"has its own region, and .* is given too"):
        Inventory.scan(["x.tar"], ReadOptions(refuses_regions=True))


@pytest.mark.parametrize("region", ['"1,2,3"', "[1, 2, 3]", "[4, 3, 2, 1]", "7", "[1, 2, 3, NaN]"])
def test_invalid_region_fails_one_row(region):
    tar(("1.jpg", JPEG), ("1.json", f'{{"region": {region}}}'.encode()), ("2.jpg", JPEG))
    first, second = items("x.tar")
    assert first.fault.message.startswith("The 'region' must ")
    assert first.fault.message.endswith(".")
    assert second.fault is None


def test_sample_without_prompt_or_choices_fails_one_row():
    good = b'{"prompt": "what?", "pick": "yes|no", "thing": "star"}'
    for bad in (
        b'{"pick": "a|b", "thing": "b"}',
        b'{"prompt": 7, "pick": "a|b", "thing": "b"}',
        b'{"prompt": "a", "pick": "a|a", "thing": "b"}',
        b'{"prompt": "a", "thing": "b"}',
        b'{"prompt": "a", "pick": "a|b", "thing": ["b"]}',
    ):
        tar(("1.jpg", JPEG), ("1.json", good), ("2.jpg", JPEG), ("2.json", bad))
        reading = ReadOptions(requires_prompts=True, choices_column="pick", fields=("thing",))
        first, second = items("x.tar", reading=reading)
        assert (first.fault, first.prompts, first.choices) == (None, ("what?",), ("yes", "no"))
        assert second.fault.code in ("no_prompt", "decode_failed")
        assert len(second.prompts) == 1


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_members():
    with Path("x.tar").open("wb") as file:
        for number in range(50_000):
            header = tarfile.TarInfo(f"{number:06}.jpg")
            header.size = 1
            file.write(header.tobuf() + b"x".ljust(512, b"\0"))
        file.write(bytes(1024))
    source = Inventory.scan(["x.tar"])
    before = psutil.Process().memory_info().rss
    assert sum(1 for _ in source) == source.total == 50_000
    assert psutil.Process().memory_info().rss - before < 30 * 2**20


# --- data sets


def shard(name: str, *images: tuple[str | None, bytes], **columns: list[object]) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    image = pa.array([{"bytes": data, "path": path} for path, data in images], struct)
    pq.write_table(pa.table({"image": image, **columns}), name)


def test_folder_with_images_is_a_folder_of_images():
    shard("set/rows.parquet", ("a.png", PNG))
    Path("set/b.png").write_bytes(PNG)
    assert ids("set") == ["b.png"]


def test_output_of_runs_is_not_part_of_a_data_set():
    shard("set/data/a.parquet", ("a.png", PNG))
    shard("set/out/part-000000.parquet", ("a.png", PNG))
    Path("set/out.pgcli").mkdir()
    assert ids("set") == ["a.png"]


def test_parquet_with_images_precedes_archives_unless_patterns_choose():
    Path("i2d").mkdir()
    tar(("a0.jpg", JPEG), name="i2d/a.tar")
    shard("i2d/b.parquet", ("b.png", PNG))
    Path("i2d/c.jsonl").write_text('{"image": "x.png"}\n')
    Path("i2d/d.csv").write_text("image,n\ny.png,1\n")
    assert ids("i2d") == ["b.png"]
    for include, expected in (
        ("*.tar", ["i2d/a.tar/a0.jpg"]),
        ("a*", ["i2d/a.tar/a0.jpg"]),
        ("*.parquet", ["b.png"]),
        ("*.png", ["b.png"]),
        ("*.jsonl", ["x.png"]),
        ("d.*", ["y.png"]),
    ):
        assert ids("i2d", reading=ReadOptions(names=NameFilter((include,)))) == expected
    assert ids("i2d", reading=ReadOptions(names=NameFilter((), ("*.parquet",)))) == [
        "i2d/a.tar/a0.jpg"
    ]
