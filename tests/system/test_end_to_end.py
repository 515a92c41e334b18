"""The program from end to end: commands, and the rows and exit codes they give."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.inputs import Inventory
from pgcli.records import COLUMNS, TIMING_COLUMNS
from tests.support import awkward, forkserver
from tests.support.awkward import noisy

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "examples" / "images"
NAMES = sorted(file.name for file in IMAGES.iterdir())
PROGRAM = (sys.executable, "-m", "pgcli")
DEMO = ("--model", "demo", "--device", "cpu", "--dtype", "float32")
#: Prompts of three lengths that the built-in model understands. For other prompts its best tokens
#: are within 1e-4 of one another, and the contract does not determine the order of such ties.
QUESTIONS = (
    "what colour is the background?",
    "caption en",
    "how many circles of any colour are there in this image?",
)
LIMIT_SECONDS = 600  # more than any of these runs takes on a busy machine: a timeout means a hang

Row = dict[str, Any]
Done = subprocess.CompletedProcess[bytes]


@pytest.fixture(scope="module")
def clean_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment without the settings of this machine and its user."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PGCLI_")}
    home = str(tmp_path_factory.mktemp("home"))
    return kept | {
        "HOME": home,
        "XDG_CONFIG_HOME": home,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PYTHON": sys.executable,
    }


@pytest.fixture(scope="module")
def pgcli(clean_env: dict[str, str]) -> Any:
    """A function that runs the program in a new process."""

    def run(*arguments: object, stdin: bytes = b"", cwd: Path = ROOT) -> Done:
        words = [*map(os.fspath, map(text_or_path, arguments))]
        if sys.platform == "linux":
            options: dict[str, Any] = {"env": clean_env, "cwd": cwd, "input": stdin}
            return forkserver.run(words, timeout=LIMIT_SECONDS, kind="real", **options)
        return subprocess.run(
            [*PROGRAM, *words],
            input=stdin,
            cwd=cwd,
            env=clean_env,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )

    return run


@pytest.fixture(scope="module")
def shell(clean_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that runs a shell line in which `pgcli` is the program."""
    environment = clean_env | forkserver.install(tmp_path_factory.mktemp("bin"))

    def run(line: str, cwd: Path = ROOT) -> Done:
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=cwd,
            env=environment,
            capture_output=True,
            timeout=LIMIT_SECONDS,
        )

    return run


def text_or_path(argument: object) -> str | Path:
    return argument if isinstance(argument, str | Path) else str(argument)


def rows_of(done: Done, code: int = 0) -> list[Row]:
    """The rows on standard output of a run with this exit code and tidy messages."""
    assert_tidy(done, code)
    return [json.loads(line) for line in done.stdout.splitlines()]


def assert_tidy(done: Done, code: int) -> None:
    stderr = done.stderr.decode()  # raises on invalid UTF-8
    assert done.returncode == code, stderr
    assert "Traceback" not in stderr
    assert all(line.isprintable() for line in stderr.split("\n")), stderr
    assert all(line.startswith(("pgcli: ", "hint: ")) for line in stderr.splitlines()), stderr


def answers_of(rows: list[Row]) -> list[tuple[Any, ...]]:
    """The columns that depend only on the model and its input."""
    columns = ("index", "prompt", "answer", "boxes", "tokens", "finish")
    return [tuple(row[name] for name in columns) for row in rows]


# --- a folder of awkward files ---


@pytest.fixture(scope="module")
def awkward_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str | None]]:
    """The folder, and the expected results of its files in the order of the input."""
    folder = tmp_path_factory.mktemp("awkward")
    fates = awkward.make(folder)
    (folder / "noise").mkdir()
    for voice, data in noisy().items():
        (folder / "noise" / f"{voice}.tif").write_bytes(data)
        fates[f"noise/{voice}.tif"] = None if voice == "warning" else "decode_failed"
    paths = [os.path.relpath(item.path, folder) for item in Inventory.scan([str(folder)])]
    assert sorted(paths) == sorted(fates)
    return folder, [fates[path] for path in paths]


@pytest.fixture(scope="module")
def awkward_rows(pgcli: Any, awkward_folder: tuple[Path, list[str | None]]) -> list[Row]:
    return rows_of(pgcli("caption", awkward_folder[0], *DEMO), code=3)


def test_readable_files_are_answered_and_broken_ones_are_errors(
    awkward_folder: tuple[Path, list[str | None]], awkward_rows: list[Row]
) -> None:
    assert [row["error"] for row in awkward_rows] == awkward_folder[1]
    assert [row["index"] for row in awkward_rows] == list(range(len(awkward_rows)))
    for row in awkward_rows:
        assert tuple(row) == COLUMNS
        assert (row["answer"] is None) == (row["error"] is not None)
        assert (row["error_message"] is None) == (row["error"] is None)
        assert (row["task"], row["prompt"]) == ("caption", "caption en")


def test_an_error_row_keeps_what_is_known_and_leaves_the_rest_null(
    awkward_rows: list[Row],
) -> None:
    known = {"index", "id", "image", "task", "prompt", "model", "load_ms", "width", "height"}
    known |= {"boxes", "error", "error_message"}
    for row in awkward_rows:
        if row["error"]:
            assert not any(row[name] for name in set(COLUMNS) - known), row
            assert row["boxes"] == []
    sizes = {row["id"]: (row["width"], row["height"]) for row in awkward_rows}
    assert sizes["bomb.png"] == (50_000, 50_000)
    assert sizes["rotated.jpeg"] == (30, 40)


def test_rows_are_the_same_without_worker_processes(
    pgcli: Any, awkward_folder: tuple[Path, list[str | None]], awkward_rows: list[Row]
) -> None:
    done = pgcli("caption", awkward_folder[0], *DEMO, "--workers", 0, "--format", "text")
    assert_tidy(done, 3)
    lines = done.stdout.decode().split("\n")
    assert all(line.isprintable() for line in lines)
    errors = [line for line in lines if ": error " in line]
    assert len(errors) == sum(row["error"] is not None for row in awkward_rows)
    for line, row in zip(errors, filter(lambda row: row["error"], awkward_rows), strict=True):
        assert line.endswith(f": error {row['error']}: {row['error_message']}")


def test_a_few_noisy_files_leave_the_terminal_clean(pgcli: Any, tmp_path: Path) -> None:
    for voice, data in noisy().items():
        (tmp_path / f"{voice}.tif").write_bytes(data)
    rows = rows_of(pgcli("caption", tmp_path, *DEMO), code=3)
    assert [row["error"] for row in rows] == ["decode_failed", "decode_failed", None]


def test_paths_in_rows_open_their_images(pgcli: Any, awkward_rows: list[Row]) -> None:
    answered = [row for row in awkward_rows if row["error"] is None]
    paths = b"\0".join(os.fsencode(row["image"]) for row in answered)
    again = rows_of(pgcli("caption", "-", "-0", *DEMO, stdin=paths))
    assert [row["id"] for row in again] == [row["image"] for row in answered]
    assert [row["answer"] for row in again] == [row["answer"] for row in answered]


# --- pipes ---


def test_captions_go_through_a_pipe(shell: Any) -> None:
    reader = "import json, sys; print(*[json.loads(line)['id'] for line in sys.stdin])"
    done = shell(f'pgcli caption examples/images | "$PYTHON" -c "{reader}"')
    assert_tidy(done, 0)
    assert done.stdout.decode().split() == NAMES
    # a notice about the built-in model, which was not named
    assert "--model google/paligemma" in done.stderr.decode()


@pytest.mark.parametrize(
    "workers",
    [pytest.param([], marks=pytest.mark.slow), ["--workers", "0"]],
    ids=["processes", "here"],
)
def test_row_of_a_slow_pipe_is_shown_before_the_next_arrives(workers: list[str]) -> None:
    words = [sys.executable, "-m", "pgcli", "caption", "-", "--quiet", *workers]
    run = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    assert run.stdin is not None
    assert run.stdout is not None
    try:
        for index in range(2):
            run.stdin.write(f"{IMAGES / 'one.png'}\n".encode())
            run.stdin.flush()
            assert select.select([run.stdout], [], [], 100)[0]
            assert json.loads(run.stdout.readline())["index"] == index
        run.stdin.close()
        assert run.wait(timeout=100) == 0
    finally:
        run.kill()
        run.wait(timeout=60)


def test_images_named_by_find_are_answered(shell: Any) -> None:
    found = "find examples/images -name '*.png' | sort"
    line = f"{found} | pgcli ask - --prompt 'how many shapes are there?' {' '.join(DEMO)}"
    rows = rows_of(shell(line))
    pngs = [f"examples/images/{name}" for name in NAMES if name.endswith("png")]
    assert [(row["id"], row["image"]) for row in rows] == [(png, png) for png in pngs]
    assert {row["prompt"] for row in rows} == {"how many shapes are there?"}


def test_closed_pipe_ends_the_run_quietly(shell: Any) -> None:
    done = shell(f"pgcli caption examples/images {' '.join(DEMO)} --batch-size 1 -q | head -n 1")
    assert len(done.stdout.splitlines()) == 1
    assert (done.returncode, done.stderr) == (128 + 13, b"")  # SIGPIPE, as for any filter
    done = shell("pgcli --help | true")
    assert (done.returncode, done.stderr) == (128 + 13, b"")


# --- manifests ---


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images, and three Parquet manifests that name or hold them."""
    folder = tmp_path_factory.mktemp("manifests")
    shutil.copytree(IMAGES, folder / "images")
    data = [(IMAGES / name).read_bytes() for name in NAMES]
    paths = [f"images/{name}" for name in NAMES]
    structs = [{"bytes": one, "path": path} for one, path in zip(data, paths, strict=True)]
    for kind, column in {"path": paths, "bytes": data, "struct": structs}.items():
        columns = {
            "id": [f"№ {name}" for name in NAMES],
            "image": column,
            "note": list(range(len(NAMES))),
        }
        pq.write_table(pa.table(columns), folder / f"{kind}.parquet", row_group_size=5)
    return folder


@pytest.fixture(scope="module")
def answered(pgcli: Any, manifests: Path) -> Path:
    """The folder with the answers to each manifest, as Parquet."""
    for kind in ("path", "bytes", "struct"):
        done = pgcli(*ask_arguments(manifests, kind), "-o", manifests / f"{kind} answers.parquet")
        assert_tidy(done, 0)
        assert done.stdout == b""
    return manifests


def ask_arguments(manifests: Path, kind: str) -> list[Any]:
    manifest = manifests / f"{kind}.parquet"
    prompt = "what is №{note}?"
    return ["ask", manifest, "--prompt", prompt, "--keep", "note", "--no-timing", *DEMO]


def parquet_rows(file: Path) -> list[Row]:
    return pq.read_table(file).to_pylist()


def test_paths_bytes_and_structs_in_parquet_are_answered_alike(answered: Path) -> None:
    rows = {
        kind: parquet_rows(answered / f"{kind} answers.parquet")
        for kind in ("path", "bytes", "struct")
    }
    assert answers_of(rows["path"]) == answers_of(rows["bytes"]) == answers_of(rows["struct"])
    assert [row["id"] for row in rows["bytes"]] == [f"№ {name}" for name in NAMES]
    assert [row["image"] for row in rows["path"]] == [f"{answered}/images/{name}" for name in NAMES]
    assert [row["width"] for row in rows["path"]] == [row["width"] for row in rows["bytes"]]
    assert [row["prompt"] for row in rows["struct"]][:2] == ["what is №0?", "what is №1?"]


def test_parquet_and_json_lines_hold_the_same_rows(pgcli: Any, answered: Path) -> None:
    rows = rows_of(pgcli(*ask_arguments(answered, "struct")))
    assert rows == parquet_rows(answered / "struct answers.parquet")
    assert [row["note"] for row in rows] == list(range(len(NAMES)))
    assert tuple(rows[0]) == (*COLUMNS, "note")
    assert all(row[name] is None for row in rows for name in TIMING_COLUMNS)


def test_other_tools_read_the_parquet(answered: Path) -> None:
    duckdb, pandas, polars = map(pytest.importorskip, ("duckdb", "pandas", "polars"))
    file = answered / "path answers.parquet"
    expected = [(row["id"], row["answer"], len(row["boxes"])) for row in parquet_rows(file)]
    frame = pandas.read_parquet(file)
    assert list(zip(frame.id, frame.answer, frame.boxes.map(len), strict=True)) == expected
    table = polars.read_parquet(file)
    assert table.select("id", "answer", polars.col("boxes").list.len()).rows() == expected
    query = f"select id, answer, len(boxes) from '{file}' order by index"
    assert duckdb.sql(query).fetchall() == expected


def test_parquet_metadata_describes_the_run(answered: Path) -> None:
    settings = json.loads(pq.read_schema(answered / "path answers.parquet").metadata[b"pgcli"])
    row = parquet_rows(answered / "path answers.parquet")[0]
    assert settings["model"] == row["model"]
    assert settings["versions"].keys() >= {"pgcli", "torch"}


# --- rows and options ---


def ask_all(pgcli: Any, size: int) -> list[Row]:
    prompts = [word for question in QUESTIONS for word in ("--prompt", question)]
    return rows_of(pgcli("ask", IMAGES, *prompts, *DEMO, "--batch-size", size))


@pytest.fixture(scope="module")
def one_by_one(pgcli: Any) -> list[Row]:
    return ask_all(pgcli, 1)


@pytest.mark.parametrize("size", [7, 64])
def test_no_batch_size_changes_an_answer(pgcli: Any, size: int, one_by_one: list[Row]) -> None:
    rows = ask_all(pgcli, size)
    keys = [(index, question) for index in range(len(NAMES)) for question in QUESTIONS]
    assert [(row["index"], row["prompt"]) for row in rows] == keys
    # so many were read together; a large batch is filled by several such groups
    assert max(row["batch"] for row in rows) == min(size, 32)
    assert answers_of(rows) == answers_of(one_by_one)
    logprobs = [row["logprob"] for row in one_by_one]
    assert [row["logprob"] for row in rows] == pytest.approx(logprobs, abs=1e-4)


def test_a_limit_counts_rows(pgcli: Any) -> None:
    prompts = ("--prompt", "one", "--prompt", "two")
    rows = rows_of(pgcli("ask", IMAGES, *prompts, *DEMO, "--limit", 3))
    keys = [(row["index"], row["id"], row["prompt"]) for row in rows]
    assert keys == [(0, NAMES[0], "one"), (0, NAMES[0], "two"), (1, NAMES[1], "one")]


# --- exit codes ---


def lines(*rows: Row) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture(scope="module")
def bad_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an invalid input of each kind."""
    folder = tmp_path_factory.mktemp("bad_inputs")
    shutil.copy(IMAGES / "one.png", folder / "one.png")
    one = {"image": "one.png"}
    (folder / "empty").mkdir()
    (folder / "twice.jsonl").write_bytes(lines(one | {"id": 1}, one | {"id": 1}))
    (folder / "prompts.jsonl").write_bytes(lines(one | {"prompt": "what?"}))
    (folder / "broken.jsonl").write_bytes(lines(one) + b'{"image": "one.png"\n')
    (folder / "kept.jsonl").write_bytes(b"an older answer")
    (folder / "pickled").mkdir()
    (folder / "pickled" / "config.json").write_bytes((BUILTIN / "config.json").read_bytes())
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    shutil.copytree(BUILTIN, folder / "cut")
    whole = (BUILTIN / "model.safetensors").read_bytes()
    (folder / "cut" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    many = Image.new("RGB", (4, 4))
    (folder / "many").mkdir()
    for number in range(101):
        many.save(folder / "many" / f"{number}.bmp")
    return folder


BUILTIN = ROOT / "pgcli" / "builtin"


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (4, "caption empty"),
        (4, "caption *.gif"),
        (2, "caption nowhere.png"),
        (2, "caption s3://bucket/images"),
        (4, "caption"),  # which reads an empty pipe
        (2, "paint one.png"),
        (2, "caption one.png --no-such-option"),
        (2, "caption one.png --batch-size 0"),
        (2, "caption one.png --dtype float16"),
        (2, "caption one.png --region 5,5,5,9"),
        (2, "caption one.png --keep note"),
        (2, "caption one.png -o rows/ --format jsonl"),
        (2, "caption twice.jsonl"),
        (2, "caption many"),
        (2, "ask one.png"),
        (2, "ask prompts.jsonl --prompt hello"),
        (2, "ask prompts.jsonl --prompt {colour}"),
        (10, "caption one.png --model no-one/no-such-model"),
        (10, "caption one.png --model ./no/such/folder"),
        (13, "caption one.png -o kept.jsonl"),
        (16, "caption one.png --model pickled"),
        (16, "caption one.png --model cut"),
    ],
)
def test_mistakes_have_a_message_a_hint_and_an_exit_code(
    pgcli: Any, bad_inputs: Path, code: int, line: str
) -> None:
    done = pgcli(*line.split(), cwd=bad_inputs)
    assert_tidy(done, code)
    assert done.stdout == b""
    stderr = done.stderr.decode().splitlines()
    assert [text.split(":")[0] for text in stderr[-2:]] == ["pgcli", "hint"]
    assert (bad_inputs / "kept.jsonl").read_bytes() == b"an older answer"


def test_broken_manifest_line_is_named(pgcli: Any, bad_inputs: Path) -> None:
    done = pgcli("caption", "broken.jsonl", cwd=bad_inputs)
    assert_tidy(done, 2)
    assert done.stdout == b""
    assert "broken.jsonl, line 2: " in done.stderr.decode()


def test_a_run_may_stop_at_the_first_error(pgcli: Any, bad_inputs: Path) -> None:
    names = b"one.png\ngone.png\none.png\n"
    options = (*DEMO, "--on-error", "stop", "--batch-size", 1)
    done = pgcli("caption", "-", *options, cwd=bad_inputs, stdin=names)
    rows = rows_of(done, code=15)
    assert [row["error"] for row in rows] == [None, "missing"]


# --- memory ---


@pytest.fixture(scope="module")
def many_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 3,000 small images."""
    folder = tmp_path_factory.mktemp("many_images")
    for number in range(3000):
        colour = (number % 256, number // 256, 99)
        Image.new("RGB", (32, 32), colour).save(folder / f"{number:04}.png")
    return folder


# A leak of the pixels of each image would take 9 MiB in a thousand rows. With workers, prefetched
# images take as much, and the bound of the contract is checked instead.
@pytest.mark.nightly
@pytest.mark.parametrize(("workers", "rows", "growth_mib"), [(0, 2000, 6), (2, 3000, 100)])
def test_memory_stays_flat_over_thousands_of_images(
    many_images: Path,
    tiny: Path,
    clean_env: dict[str, str],
    workers: int,
    rows: int,
    growth_mib: int,
) -> None:
    model = ("--model", str(tiny), "--device", "cpu", "--batch-size", "32")
    options = ("--max-new-tokens", "4", "--workers", str(workers), "--limit", str(rows))
    command = [*PROGRAM, "caption", str(many_images), *model, *options]
    resident = dict(sampled(command, clean_env, every=100))
    assert len(resident) >= rows // 100 - 1
    resident.pop(rows, None)  # the end of a run imports what makes its summary
    early = max(size for row, size in resident.items() if row <= 1000)
    assert max(resident.values()) - early < growth_mib * 2**20, resident


def sampled(command: list[str], env: dict[str, str], *, every: int) -> Iterator[tuple[int, int]]:
    """Yield the resident bytes of the program and its workers, every so many rows."""
    with subprocess.Popen(
        command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        assert running.stdout is not None
        program = psutil.Process(running.pid)
        for count, _ in enumerate(running.stdout, start=1):
            with suppress(psutil.NoSuchProcess):  # the last rows are still in the pipe
                if count % every == 0:
                    yield count, resident_bytes(program)
    assert running.returncode == 0


def resident_bytes(program: psutil.Process) -> int:
    processes = (program, *program.children(recursive=True))
    return sum(process.memory_info().rss for process in processes)


def test_output_that_is_an_input_is_refused_and_unchanged(pgcli: Any, tmp_path: Path) -> None:
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text(json.dumps({"image": str(IMAGES / NAMES[0])}) + "\n")
    before = manifest.read_bytes()
    for name in (manifest, tmp_path / "*.jsonl"):
        done = pgcli("caption", name, *DEMO, "-o", manifest, "--overwrite")
        assert done.returncode == 2
        assert b"is an input" in done.stderr
        assert manifest.read_bytes() == before


def test_empty_standard_input_is_refused(pgcli: Any, tmp_path: Path) -> None:
    for output in ("-", tmp_path / "rows.parquet", tmp_path / "rows.jsonl"):
        done = pgcli("caption", "-", *DEMO, "-o", output, stdin=b"")
        assert done.returncode == 4
        assert b"standard input" in done.stderr
    assert not list(tmp_path.iterdir())


def test_prompt_in_a_stdin_row_with_prompt_option_is_refused(pgcli: Any) -> None:
    row = json.dumps({"image": str(IMAGES / NAMES[0]), "prompt": "caption en"}).encode()
    done = pgcli("ask", "-", "--prompt", "how many?", *DEMO, stdin=row)
    assert done.returncode == 2
    assert b"has a prompt" in done.stderr
    assert pgcli("caption", "-", *DEMO, stdin=row).returncode == 0
