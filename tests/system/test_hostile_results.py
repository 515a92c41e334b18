"""Result files and run records that another program wrote or damaged."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pgcli
from pgcli.cli.main import main
from pgcli.errors import PgcliError
from pgcli.registry import BUILT_IN
from pgcli.run import model as running
from tests.support import pretend
from tests.support.awkward import HOSTILE, drawing, encoded, paths, replace_at, tar_of, to_text
from tests.support.exporting import detected, make_images, saved

Capture = pytest.CaptureFixture[str]

COMMANDS = ["view", "draw", "status", "check", "read", "resume", *BUILT_IN["exports"]]
SEGMENT = "segment photos.tar rest.jsonl --object cat --keep n -o rows.jsonl".split()
#: Success, usage error, missing images, no input, a difference, another run's output.
DOCUMENTED = {0, 2, 3, 4, 5, 13}


@pytest.fixture
def workdir(tmp_path, monkeypatch) -> Path:
    """A folder with a complete run of two sources, and a copy named `sound`."""
    workdir = tmp_path / "run"
    workdir.mkdir()
    monkeypatch.chdir(workdir)
    monkeypatch.setenv("PGCLI_MODEL", "demo")
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    monkeypatch.setenv("PRETEND_ANSWERS", json.dumps(["cat"]))
    image = encoded(drawing(), "PNG")
    (workdir / "c.png").write_bytes(image)
    members = {"a.png": image, "a.json": b'{"n": 1}', "b.png": image}
    (workdir / "photos.tar").write_bytes(tar_of(members.items()))
    (workdir / "rest.jsonl").write_text('{"image": "c.png", "n": [1]}\n')
    assert main([*SEGMENT, "--quiet"]) == 0
    shutil.copytree(workdir, tmp_path / "sound")
    return workdir


def run(command: str, number: int) -> int:
    """The exit code of a command on the result file."""
    if command == "read":
        try:
            results = pgcli.read("rows.jsonl")
            assert len(results) == len(list(results))
            repr(results)
            list(results.errors)
        except PgcliError as problem:
            return problem.exit_code
        return 0
    if command == "resume":
        return main([*SEGMENT, "--quiet"])
    if command in ("view", "draw"):
        draw = ["--draw", f"drawn{number}"] if command == "draw" else []
        return main(["view", "rows.jsonl", "-o", f"{number}.html", "--quiet", *draw])
    if command in ("status", "check"):
        return main([command, "rows.jsonl"])
    return main(["export", "rows.jsonl", "--to", command, "-o", f"export{number}"])


@pytest.mark.parametrize("examples", [40, pytest.param(250, marks=pytest.mark.nightly)])
def test_hostile_rows_and_records_have_documented_exit_codes(workdir, examples):
    sound = workdir.parent / "sound"
    originals = {
        name: json.loads((sound / name).read_text().splitlines(keepends=True)[0])
        if name == "rows.jsonl"
        else json.loads((sound / name).read_text())
        for name in ("rows.jsonl", "rows.jsonl.pgcli/run.json", "rows.jsonl.pgcli/owner.json")
    }
    rest = (sound / "rows.jsonl").read_text().splitlines(keepends=True)[1:]
    everywhere = [(name, path) for name, known in originals.items() for path in paths(known)]
    numbers = iter(range(10**6))

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        derandomize=True,
    )
    @given(st.sampled_from(everywhere), st.sampled_from(HOSTILE), st.sampled_from(COMMANDS))
    def change(where: tuple[str, tuple[Any, ...]], value: Any, command: str) -> None:
        shutil.copytree(sound, workdir, dirs_exist_ok=True)
        name, path = where
        known = json.loads(json.dumps(originals[name]))
        replace_at(known, path, value)
        lines = [to_text(known) + "\n", *(rest if name == "rows.jsonl" else ())]
        Path(name).write_text("".join(lines), encoding="utf-8", errors="surrogatepass")
        code = run(command, next(numbers))
        assert code in DOCUMENTED, (name, path, value, command, code)

    change()


@pytest.mark.parametrize("levels", [900, 5000])
@pytest.mark.parametrize("at", [1, 2])
def test_row_nested_too_deeply_is_named(capsys, tmp_path, levels, at):
    rows = [to_text(row) for row in detected(make_images(tmp_path / "images"))]
    rows[at] = to_text({**json.loads(rows[at]), "more": f"deep {levels}"})
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(rows) + "\n")
    for words in (["view"], ["export", "--to", "coco"]):
        assert main([*words, str(file), "-o", str(tmp_path / "made")]) == 2
        assert f"row {at + 1}: nested too deeply" in capsys.readouterr().err
    with pytest.raises(PgcliError, match=f"row {at + 1}: nested too deeply"):
        pgcli.read(file)


def test_invalid_run_record_is_reported(capsys, workdir):
    file = Path("rows.jsonl.pgcli/run.json")
    known = json.loads(file.read_text())
    options = known["input"]["options"]
    for wrong in (
        {"sources": 5},
        {"command": "describe"},
        {"command": []},
        {"folder": None},
        {"options": 5},
        {"options": {}},  # nothing to detect
        {"options": options | {"object": ["cat\ncat"]}},
        {"options": options | {"keep": 5}},
        {"options": options | {"image_column": {}}},
        {"options": options | {"max_new_tokens": 0}},
        {"options": options | {"output": ["rows.jsonl"]}},
        {"options": options | {"unknown": 1}},
    ):
        file.write_text(json.dumps(known | {"input": known["input"] | wrong}))
        assert main(["check", "rows.jsonl"]) == 2
        assert "run.json is not the record of a run: " in capsys.readouterr().err
    file.write_text(json.dumps(known | {"input": [1]}))
    for command in ("status", "check"):
        assert main([command, "rows.jsonl"]) == 13
        assert "run.json is not a record of a run" in capsys.readouterr().err
    assert main([*SEGMENT]) == 13
    assert "run.json is not a record of a run" in capsys.readouterr().err


def test_rows_without_optional_columns_are_read(tmp_path):
    kept = ("index", "id", "image", "task", "prompt", "answer", "boxes", "error", "width", "height")
    rows = [
        {name: row[name] for name in kept} for row in detected(make_images(tmp_path / "images"))
    ]
    file = saved(tmp_path / "rows.jsonl", rows)
    first = pgcli.read(file)[0]
    assert (first.id, first.tokens, first.model, len(first.boxes)) == ("a.png", None, None, 2)
    page, drawn = tmp_path / "page.html", tmp_path / "drawn"
    assert main(["view", str(file), "-o", str(page), "--draw", str(drawn), "--quiet"]) == 0
    assert (drawn / "a.png").is_file()


def test_images_of_a_reordered_archive_are_missing(workdir):
    """Another image may have the place that the run recorded."""
    image, other = Path("c.png").read_bytes(), encoded(drawing(70, 70), "PNG")
    members = {"b.png": other, "a.png": image, "a.json": b'{"n": 1}'}
    Path("photos.tar").write_bytes(tar_of(members.items()))
    main(["view", "rows.jsonl", "--draw", "drawn", "-q"])
    assert not [*Path("drawn").rglob("a.png")]
