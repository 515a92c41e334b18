"""Foreign files are not deleted, written or read: links, FIFOs, folders and garbage."""

import json
import os
import shutil
import signal
import sys
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import pgcli.run.model
from pgcli.cli.main import main
from pgcli.errors import UsageError
from tests.support.stub_runs import Calls, die, finish, kinds, make_images, rows_of, start

VICTIM = b'{"index":0,"id":"mine"}\nkeep this\n'
RUNS = {name: run for name, run in kinds(5).items() if name != "parquet of engines"}
KINDS = {name: RUNS[name] for name in ("lines", "parquet", "folder", "shard")}
ALONE = [kind for kind in KINDS if kind != "shard"]
SECONDS = 30  # after which a command counts as hanging
WAYS = (
    "link",
    "hard link",
    "dangling link",
    "fifo",
    "folder",
    "garbage",
    "empty",
    "link to folder",
)


@pytest.fixture
def images(tmp_path) -> Path:
    make_images(tmp_path / "images", 8, broken=[3])
    (tmp_path / "run").mkdir()
    make_victim(tmp_path)
    return tmp_path


def make_victim(images: Path) -> None:
    """A folder with files of somebody else."""
    shutil.rmtree(images / "victim", ignore_errors=True)
    (images / "victim").mkdir()
    for name in ("text", "part-000000.parquet", "sub"):
        (images / "victim" / name).write_bytes(VICTIM)


def is_untouched(images: Path) -> bool:
    files = sorted((images / "victim").iterdir())
    return [file.read_bytes() for file in files] == [VICTIM] * 3


def put(images: Path, path: Path, way: str) -> None:
    """Put something foreign in place of a file or folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if way == "link":
        path.symlink_to(images / "victim/text")
    elif way == "hard link":
        path.hardlink_to(images / "victim/text")
    elif way == "dangling link":
        path.symlink_to(images / "victim/new")
    elif way == "fifo":
        os.mkfifo(path)
    elif way == "folder":
        path.mkdir()
        (path / "text").write_bytes(VICTIM)
    elif way == "link to folder":
        path.symlink_to(images / "victim")
    else:
        path.write_bytes(b"\0garbage{" if way == "garbage" else b"")


@pytest.mark.parametrize(("kind", "overwrite"), [*product(KINDS, [False]), *product(ALONE, [True])])
@pytest.mark.parametrize("way", ["link to folder", "folder", "link", "fifo", "garbage"])
def test_foreign_state_folder_exits_with_13(images, kind, way, overwrite):
    output, options = KINDS[kind]
    state = images / "run" / f"{output.rstrip('/')}.pgcli"
    put(images, state, way)
    code, said = finish(images / "run", output, overwrite=overwrite, **options)
    assert code == 13, said
    assert is_untouched(images)
    assert way != "folder" or (state / "text").read_bytes() == VICTIM
    assert sorted(os.listdir(images / "run")) == [state.name]  # noqa: PTH208


@pytest.mark.parametrize("name", ["inputs/0.arrow", "open/000000000000-ab.jsonl"])
@pytest.mark.parametrize("kind", KINDS)
def test_own_names_without_a_record_are_left_alone(images, kind, name):
    """35.1: --overwrite emptied a user's folder of a state folder's name, as far as it could."""
    output, options = KINDS[kind]
    file = images / "run" / f"{output.rstrip('/')}.pgcli" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(VICTIM)
    for overwrite in (False, True) if kind in ALONE else (False,):
        code, said = finish(images / "run", output, overwrite=overwrite, **options)
        assert (code, file.read_bytes()) == (13, VICTIM), said


@pytest.mark.parametrize("kind", ["folder", "shard"])
@pytest.mark.parametrize("name", ["part-000000.parquet", "part-00000-x.snappy.parquet", "a.txt"])
def test_folder_with_foreign_files_is_left_alone(images, kind, name):
    output, options = KINDS[kind]
    (images / "run/rows").mkdir()
    (images / "run/rows" / name).write_bytes(VICTIM)
    for overwrite in (False, True) if kind == "folder" else (False,):
        code, said = finish(images / "run", output, overwrite=overwrite, **options)
        assert code == 13, said
        assert (images / "run/rows" / name).read_bytes() == VICTIM


@pytest.mark.parametrize("options", [{}, {"retry_errors": True}, {"overwrite": True}], ids=str)
@pytest.mark.parametrize("kind", ["lines", "parquet"])
def test_foreign_file_is_not_replaced(images, kind, options):
    """As an output that somebody corrected with pandas: the run has other rows to save in it."""
    output, _ = KINDS[kind]
    assert finish(images / "run", output)[0] == 3
    file, rows = (
        images / "run" / output,
        [json.loads(row) for row in rows_of(images / "run", output)],
    )
    if kind == "lines":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    before = file.read_bytes()
    code, said = finish(images / "run", output, **options)
    if options == {"overwrite": True}:
        assert code == 3, said
    else:
        assert (code, file.read_bytes()) == (13, before), said


def test_overwrite_removes_only_files_of_the_run(images):
    output, options = KINDS["folder"]
    assert finish(images / "run", output, **options)[0] == 3
    foreign = images / "run/rows/part-00000-x.snappy.parquet"
    foreign.write_bytes(VICTIM)
    assert finish(images / "run", output, overwrite=True, **options)[0] == 13
    foreign.rename(images / "run/rows/notes.txt")
    assert finish(images / "run", output, overwrite=True, limit=3, **options)[0] == 0
    names = sorted(file.name for file in (images / "run/rows").iterdir())
    assert names == ["notes.txt", "part-000000.parquet"]


def foreign_part(images: Path, way: str) -> bytes:
    """The content of a file with the name of a file of a run, which the run did not write."""
    if way == "of another run":
        output, options = KINDS["folder"]
        (images / "another").mkdir()
        assert finish(images / "another", output, **options)[0] == 3
        return (images / "another/rows/part-000000.parquet").read_bytes()
    if way == "of another program":
        pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), images / "table")
        return (images / "table").read_bytes()
    return VICTIM


@pytest.mark.parametrize("name", ["part-000000", "part-000007", "part-0000001"])
@pytest.mark.parametrize("way", ["of another run", "of another program", "garbage"])
def test_overwrite_keeps_foreign_files_with_own_names(images, way, name):
    """Only files with the id of the run that is replaced in their metadata are removed."""
    output, options = KINDS["folder"]
    assert finish(images / "run", output, **options)[0] == 3
    (images / f"run/rows/{name}.parquet").write_bytes(foreign_part(images, way))
    before = contents(images / "run")
    code, said = finish(images / "run", output, overwrite=True, **options)
    assert (code, contents(images / "run")) == (13, before), said
    assert f"{name}.parquet" in said


def contents(folder: Path) -> dict[str, bytes]:
    """The files of an output."""
    return {file.name: file.read_bytes() for file in (folder / "rows").iterdir()}


def test_output_folder_may_be_a_mount_point(images):
    device = Path("/dev/shm")
    if not device.is_dir() or device.stat().st_dev == images.stat().st_dev:
        pytest.skip("this machine has no other file system")
    folder = device / f"pgcli-test-{os.getpid()}"
    folder.mkdir()
    try:
        (images / "run/rows").symlink_to(folder)
        output, options = KINDS["folder"]
        assert finish(images / "run", output, **options)[0] == 3
        assert len(rows_of(images / "run", output)) == 16
    finally:
        shutil.rmtree(folder)


COMMANDS = ("status", "check", "view", "merge", "export")
ACTIONS = ("again", "overwrite", "retry_errors", "read")
#: One of so many cases, of the default tests and at night: all of them take half an hour.
STEPS = [61, pytest.param(5, marks=pytest.mark.nightly)]


def read_all(output: str, sources: object) -> int:
    """The codes of the commands that read an output, each of which is documented; else 99."""
    made = {"view": "-o ../made.html", "merge": "-o ../made.jsonl", "export": "--to csv -o ../made"}
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for command in COMMANDS:
        signal.alarm(SECONDS)
        overwrite = ["--overwrite"] if command in made else []
        code = main([command, output, *made.get(command, "").split(), *overwrite])
        if code not in (0, 2, 3, 4, 5, 13, 14):
            sys.stderr.write(f"{command} {output} ended with {code}\n")
            return 99
    return 0


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("kind", RUNS)
def test_any_file_of_a_run_may_be_replaced(images, kind, action, step):
    """Complete or killed: exit code 13 or the right rows, and no victim is touched."""
    output, options = RUNS[kind]
    alone = {name: value for name, value in options.items() if name != "shard"}
    folder = images / "run"
    assert finish(folder, output, **options)[0] == 3
    rows = rows_of(folder, output)
    shutil.copytree(folder, images / "complete")
    start(folder, output, before=Calls(8, die), retry_errors=True, **alone).wait()
    shutil.move(folder, images / "retried")
    folder.mkdir()
    start(folder, output, before=Calls(34, die), **options).wait()
    shutil.move(folder, images / "killed")
    extra = ("open/000000000000.jsonl", "owner.json", "inputs/1.arrow")
    extra += ("retried/000000000000.jsonl", "retried/images", "shard-0-of-2/owner.json")
    cases, problems = [], []
    for base in (images / "complete", images / "retried", images / "killed"):
        names = {p.relative_to(base) for p in base.rglob("*")}
        names |= {Path(f"{output.rstrip('/')}.pgcli", name) for name in extra}
        cases += [(base, name, way) for name in sorted(names) for way in WAYS]
    if action in ("overwrite", "retry_errors"):
        options = {**alone, action: True}
    for base, name, way in cases[len(kind + action) % step :: step]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, folder)
        put(images, folder / name, way)
        if action == "read":
            code, said = finish(folder, output, run=read_all)
            is_right = code == 0
        else:
            code, said = finish(folder, output, before=partial(signal.alarm, SECONDS), **options)
            if code == 3:  # foreign state files may remain
                shutil.rmtree(folder / f"{output.rstrip('/')}.pgcli")
            is_right = code == 13 or (code == 3 and rows_of(folder, output) == rows)
            is_right |= code == 2 and name == Path(output)  # -o names a folder in place of a file
        if not is_right or "Traceback" in said or not is_untouched(images):
            problems.append(f"{base.name} {name} {way}: {code} {said}")
            make_victim(images)
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("run.json", {"arguments": None}),
        ("run.json", {"versions": []}),
        ("shard-0-of-1/owner.json", {"shard": "0/x", "input_rows": 8}),
        ("shard-0-of-1/owner.json", {"rows": 1, "rows_per_second": 1e-9, "input_rows": 20}),
        ("owner.json", {"input_rows": "8", "exit_code": {}}),
    ],
)
def test_hostile_state_values_give_documented_exit_codes(images, file, values):
    output, options = KINDS["shard"]
    start(images / "run", output, before=Calls(34, die), **options).wait()
    state = images / "run/rows.pgcli" / file
    state.parent.mkdir(exist_ok=True)
    known = json.loads(state.read_text()) if state.exists() else {}
    state.write_text(json.dumps(known | values))
    code, said = finish(images / "run", output, run=read_all)
    assert code == 0, said
    code, said = finish(images / "run", output, before=partial(signal.alarm, SECONDS), **options)
    assert code in (3, 12, 13), said


@pytest.mark.parametrize("number", ["9" * 12, "99", "0"])
def test_retried_answers_of_answered_rows_are_dropped(images, number):
    assert finish(images / "run", "rows.jsonl")[0] == 3
    rows = rows_of(images / "run", "rows.jsonl")
    state = images / "run/rows.jsonl.pgcli"
    (state / "retried").mkdir(exist_ok=True)
    (state / f"retried/{number:0>12}.jsonl").write_text('{"index":0,"id":"mine"}\n')
    code, said = finish(images / "run", "rows.jsonl", retry_errors=True)
    assert (code, rows_of(images / "run", "rows.jsonl")) == (3, rows), said


def refuse_model(calls):
    def refuse(*model, **options):
        raise UsageError("no model", hint="")

    pgcli.run.model.load_engine = refuse
    calls()


@pytest.mark.slow
def test_cleanup_of_an_empty_run_may_be_killed(images):
    """Whatever is left of its state is no reason to refuse the next run."""
    for number in range(1, 200):
        before = partial(refuse_model, Calls(number, die))
        code = start(images / "run", "rows.jsonl", engines=2, before=before).wait()
        assert finish(images / "run", "rows.jsonl")[0] == 3, number
        assert len(rows_of(images / "run", "rows.jsonl")) == 16
        shutil.rmtree(images / "run")
        (images / "run").mkdir()
        if code >= 0:
            assert number > 10
            return
    raise AssertionError("the run makes more calls")
