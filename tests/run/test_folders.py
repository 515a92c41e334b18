"""A run resumes in any folder, by any name of its sources, with the same bytes."""

import io
import json
import os
import shutil
import tarfile
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.run.model import load_engine

NAMES = [f"photos/{n}.png" for n in range(4)]


@pytest.fixture(autouse=True)
def data(workdir, pretended) -> None:
    """`[a] b/data` has images and every kind of table of them."""
    Path("[a] b").mkdir()
    os.chdir("[a] b")
    Path("data/photos/deep").mkdir(parents=True)
    images = []
    for number, name in enumerate(NAMES):
        Image.new("RGB", (8 + number, 8)).save(f"data/{name}")
        images.append(Path("data", name).read_bytes())
    for end, lines in {
        "jsonl": [json.dumps({"image": name, "extra": 1}) for name in NAMES],
        "csv": ["image,extra", *(f"{name},1" for name in NAMES)],
        "tsv": ["image\textra", *(f"{name}\t1" for name in NAMES)],
    }.items():
        Path(f"data/m.{end}").write_text("\n".join(lines) + "\n")
    structs = [{"bytes": data, "path": name} for data, name in zip(images, NAMES, strict=True)]
    columns = {
        "paths": NAMES,
        "structs": structs,
        "mixed": [
            {**row, "bytes": None if n % 2 else row["bytes"]} for n, row in enumerate(structs)
        ],
        "bytes": images,
    }
    for name, values in columns.items():
        pq.write_table(pa.table({"image": values, "extra": [1, 2, 3, 4]}), f"data/{name}.parquet")
    Path("data/set/shop=de").mkdir(parents=True)
    shutil.copy("data/structs.parquet", "data/set/shop=de")
    with tarfile.open("data/t.tar", "w") as plain, tarfile.open("data/t.tar.gz", "w:gz") as packed:
        for name, content in zip(NAMES, images, strict=True):
            for archive in (plain, packed):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def caption(cli, *words: str, output: Path, limit: int = 9) -> tuple[int, str, str]:
    options = ("--model", "demo", "--no-timing", "-o", output, "--limit", limit)
    return cli("caption", *words, *options)


SOURCES = (
    "photos photos/ photos/0.png photos/*.png **/*.png m.jsonl m.csv m.tsv paths.parquet "
    "structs.parquet mixed.parquet bytes.parquet set t.tar t.tar.gz"
).split()


@pytest.mark.parametrize(
    ("source", "form"),
    [
        *((source, "rows.jsonl") for source in SOURCES),
        # how names are resolved does not depend on the form; what is kept does
        *product(["photos", "m.csv", "structs.parquet", "t.tar.gz"], ["rows.parquet", "rows/"]),
    ],
)
def test_run_resumes_in_any_folder(cli, source, form):
    top, more = Path.cwd(), ("--keep", "extra") if "." in source[-8:] else ()
    more = () if ".png" in source or ".tar" in source else more
    os.chdir("data")
    suffix = "/" * form.endswith("/")
    assert caption(cli, source, *more, output="../whole" + form)[0] == 0
    output = f"{top / form}{suffix}"
    assert caption(cli, source, *more, output=output, limit=1)[0] == 0
    (top.parent / "link").symlink_to(top)
    for limit, (folder, name) in enumerate(
        [
            (top, f"data/{source}"),
            (top / "data", f"./{source}"),
            (top / "data/photos/deep", f"../../{source}"),
            (top / "data/photos", f"{top}/data/{source}"),
            (top.parent / "link", f"data/{source}"),
            (top.parent, f"link/data/{source}"),
            (Path("/"), f"{top}/data/{source}"),
        ],
        start=2,
    ):
        os.chdir(folder)
        code, _, err = caption(cli, name, *more, output=output, limit=limit)
        assert code == 0, (folder, name, err)
        assert cli("check", output.rstrip("/"))[0] == 0
    assert read(top / form) == read(top / f"whole{form}")


def read(output: Path) -> list[dict]:
    if output.suffix == ".jsonl":
        return [json.loads(line) for line in output.read_text().splitlines()]
    return pq.read_table(output).to_pylist()


@pytest.mark.parametrize(
    ("lines", "engines"),  # engines compare objects as they are written
    [("paths", ()), ("paths", ("--engines", "1")), ("objects", ())],
)
def test_standard_input_is_relative_to_the_current_folder(cli, monkeypatch, lines, engines):
    """The image of a line is the file that it names where the command runs, and no other one."""
    top = Path.cwd()

    def run(folder: Path, names: list[str], limit: int) -> tuple[int, str, str]:
        os.chdir(folder)
        texts = [json.dumps({"image": n}) if lines == "objects" else n for n in names]
        data = io.TextIOWrapper(io.BytesIO("".join(f"{t}\n" for t in texts).encode()))
        monkeypatch.setattr("sys.stdin", data)
        return caption(cli, "-", output=top / "rows.jsonl", limit=limit)

    assert run(top, [f"data/{name}" for name in NAMES], 1)[0] == 0
    assert run(top / "data", NAMES, 2)[0] == 0
    assert run(top / "data/photos", [f"../{name}" for name in NAMES], 3)[0] == 0
    assert run(Path("/"), [f"{top}/data/{name}" for name in NAMES], 3)[0] == 13
    assert run(top, [f"data/{name}" for name in NAMES], 4)[0] == 0
    rows = read(top / "rows.jsonl")
    assert [row["image"] for row in rows] == [f"data/{name}" for name in NAMES]
    assert [row["id"] for row in rows] == [f"data/{name}" for name in NAMES]
    assert [row["width"] for row in rows] == [8, 9, 10, 11]
    shutil.copytree(top / "data/photos", top / "photos")
    code, _, err = run(top, NAMES, 4)
    assert code == 13, err


def test_added_sources_are_relative_to_the_first_folder(cli):
    top = Path.cwd()
    os.chdir("data")
    assert caption(cli, "m.jsonl", "photos/0.png", output=top / "rows.jsonl")[0] == 0
    os.chdir("photos")
    sources = ["../m.jsonl", "0.png", "1.png", f"{top}/data/photos/2.png"]
    code, _, err = caption(cli, *sources, output=top / "rows.jsonl")
    assert code == 0, err
    images = [row["image"] for row in read(top / "rows.jsonl")]
    assert images == [*NAMES, "photos/0.png", "photos/1.png", f"{top}/data/photos/2.png"]


def test_copied_input_resumes_the_run(cli):
    top = Path.cwd()
    assert caption(cli, "data/m.jsonl", output=top / "rows.jsonl")[0] == 0
    shutil.copytree("data", "elsewhere/data", copy_function=shutil.copyfile)  # with other times
    os.chdir("elsewhere")
    code, _, err = caption(cli, "data/m.jsonl", output=top / "rows.jsonl")
    assert (code, "nothing to do" in err) == (0, True), err
    code, out, _ = cli("check", top / "rows.jsonl")
    assert (code, "rows match the input" in out) == (0, True), out


def test_other_input_of_the_same_name_exits_with_13(cli):
    top = Path.cwd()
    assert caption(cli, "data/photos", output=top / "rows.jsonl")[0] == 0
    shutil.copytree("data", "changed/data")
    Image.new("RGB", (9, 9)).save("changed/data/photos/0.png")
    shutil.copytree("data", "fewer/data")
    Path("fewer/data/photos/0.png").unlink()
    os.chdir("changed")
    code, _, err = caption(cli, "data/photos", output=top / "rows.jsonl")
    assert (code, "has changed: data/photos/0.png" in err) == (13, True), err
    os.chdir("../fewer")
    code, _, err = caption(cli, "data/photos", output=top / "rows.jsonl")
    assert code == 13
    assert f"{top}/data/photos -> {top}/fewer/data/photos" in err.replace("\n", "")


def test_model_folder_may_have_any_name(cli, tiny, monkeypatch):
    """Rows call it as the first command did."""
    monkeypatch.setattr("pgcli.run.model.load_engine", load_engine)
    top = Path.cwd()
    shutil.copytree(tiny, "model")
    words = ["--no-timing", "-o", f"{top}/rows.jsonl"]
    assert cli("caption", "data/photos", "--model", "model", "--limit", 1, *words)[0] == 0
    os.chdir("data")
    code, _, err = cli("caption", "photos", "--model", "../model", "--limit", 2, *words)
    assert code == 0, err
    code, _, err = cli("caption", "photos", "--model", f"{top}/model", *words)
    assert code == 0, err
    assert {row["model"] for row in read(top / "rows.jsonl")} == {"model"}


@pytest.mark.parametrize(
    "source", ["data/photos", "data/m.jsonl", "data/t.tar", "data/structs.parquet"]
)
def test_images_of_rows_are_found_from_any_folder(cli, source):
    top = Path.cwd()
    assert caption(cli, source, output=top / "rows.jsonl")[0] == 0
    os.chdir("/")
    code, _, err = cli("export", top / "rows.jsonl", "--to", "webdataset", "-o", top / "out.tar")
    assert code == 0, err
    with tarfile.open(top / "out.tar") as archive:
        assert sum(name.endswith(".png") for name in archive.getnames()) == 4
