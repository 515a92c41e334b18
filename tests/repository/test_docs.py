"""docs/: the schema accepts every row, and the commands and scripts of the pages run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgcli import errors
from pgcli.cli.main import main
from pgcli.pipeline.request.shard import SCHEDULERS, parse_shard
from pgcli.printable import printable
from pgcli.records import (
    CLASSIFY_COLUMNS,
    COLUMNS,
    EMBED_COLUMNS,
    EXTRA_COLUMNS,
    SCORE_COLUMNS,
    TEXT_COLUMNS,
    Choice,
    LabelProbability,
    Mask,
    Rle,
    TextScore,
)
from pgcli.registry import BUILT_IN
from pgcli.rows import RowSchema, answer_digest
from tests.support import forkserver
from tests.support.answers import BOX, answer, refused
from tests.support.training_data import write_folders, write_pairs, write_questions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SCHEMA = json.loads((DOCS / "row.schema.json").read_text(encoding="utf-8"))
MASKS = (Mask(tuple(range(16)), Rle((480, 640), "PPYg0")), Mask((0,) * 16), None)
#: A row of every task, of an error, and without timing.
ROWS = {
    "caption": RowSchema().row(answer(task="caption")),
    "ask": RowSchema(timing=False).row(answer(kept={"sku": 1, "more": [1]})),
    "kept": RowSchema(keep=("sku",)).row(answer(kept={"sku": {"a": [1]}})),
    "choices": RowSchema(extras=("choices",)).row(
        answer(choices=(Choice("yes", -0.5, 1.0),), tokens=None, finish=None, logprob=None)
    ),
    "detect": RowSchema().row(answer(task="detect", boxes=(BOX, BOX))),
    "segment": RowSchema(extras=("masks",)).row(
        answer(task="segment", boxes=(BOX,) * 3, masks=MASKS)
    ),
    "ocr": RowSchema().row(answer(task="ocr", answer="")),
    "error": RowSchema().row(refused(prefill_ms=None, decode_ms=None)),
    "oom": RowSchema().row(refused(code="oom", prefill_ms=None, decode_ms=None, width=None)),
}


def wrong(row: Any) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema", reason="a development dependency")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return [found.message for found in jsonschema.Draft202012Validator(SCHEMA).iter_errors(row)]


@pytest.mark.parametrize("kind", ROWS)
def test_schema_accepts_rows_of_every_task(kind):
    assert wrong(json.loads(json.dumps(ROWS[kind]))) == []


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("caption", {"answer": None}),
        ("caption", {"task": "describe"}),
        ("caption", {"width": "640"}),
        ("caption", {"error": "broken"}),
        ("detect", {"boxes": None}),
        ("detect", {"boxes": [{"label": "cat"}]}),
        ("error", {"answer": "a cat"}),
        ("error", {"error_message": None}),
        ("error", {"boxes": [ROWS["detect"]["boxes"][0]]}),
        ("segment", {"masks": [{"codes": [1], "rle": None}]}),
        ("choices", {"choices": [{"text": "yes"}]}),
    ],
)
def test_schema_refuses_invalid_rows(kind, changes):
    assert wrong(ROWS[kind] | changes)


def test_schema_refuses_a_row_without_a_column():
    for name in COLUMNS:
        assert wrong({key: value for key, value in ROWS["ask"].items() if key != name})


def first_cells(page: str, heading: str) -> list[str]:
    """What the first cells of the table below a heading name, in its order."""
    section = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    table = section.split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_schema_and_page_name_every_column():
    assert SCHEMA["required"] == list(COLUMNS)
    assert list(SCHEMA["properties"]) == [*COLUMNS, *EXTRA_COLUMNS]
    assert first_cells("results.md", "Columns") == [*COLUMNS, *EXTRA_COLUMNS]


@pytest.mark.parametrize(
    ("name", "columns", "found"),
    [
        ("embedRow", EMBED_COLUMNS, {"embedding": array("f", [0.6, 0.8])}),
        ("textRow", TEXT_COLUMNS, {"text": "a", "embedding": array("f", [0.6, 0.8])}),
        ("scoreRow", SCORE_COLUMNS, {"scores": (TextScore("a", 0.1, None, 1.0),)}),
        ("classifyRow", CLASSIFY_COLUMNS, {"labels": (LabelProbability("a", 0.5),)}),
    ],
)
def test_schema_has_the_rows_of_two_towers(name, columns, found):
    jsonschema = pytest.importorskip("jsonschema", reason="a development dependency")
    schema = SCHEMA | {"$ref": f"#/$defs/{name}"}
    for key in ("required", "type", "if", "then", "else"):
        del schema[key]
    assert SCHEMA["$defs"][name]["required"] == list(columns)
    row = json.loads(json.dumps(RowSchema(base=columns).row(answer(**found))))
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(row)) == []
    for column in columns:
        assert list(validator.iter_errors({n: v for n, v in row.items() if n != column}))


def test_schema_has_every_error_code():
    """The schema has every error code that the source names."""
    codes = set(SCHEMA["properties"]["error"]["enum"]) - {None}
    named = set()
    for file in (ROOT / "pgcli").rglob("*.py"):
        if file.parent.name == "training":  # which reads rows, and writes none
            continue
        text = file.read_text(encoding="utf-8")
        named |= set(re.findall(r'Fault\(\s*"(\w+)"', text))
        named |= set(re.findall(r'BadValue\(.*, "(\w+)"\)', text))
    assert {"missing", "io_error", "no_prompt"} <= named <= codes


def test_the_page_of_troubles_has_every_code():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, errors.PgcliError)}
    assert raised | {0, 3} == codes
    rows = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert rows == SCHEMA["properties"]["error"]["enum"][1:]


def test_the_index_names_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_page_of_results_names_every_format():
    assert first_cells("results.md", "Exports") == list(BUILT_IN["exports"])


def test_page_lists_the_variables_of_schedulers_in_their_order():
    section = (
        (DOCS / "running.md").read_text(encoding="utf-8").split("\n### Shards of a scheduler\n")[1]
    )
    rows = re.findall(r"^\| .* \| `(\w+)` \| `(\w+)` \|$", section, flags=re.MULTILINE)
    assert rows == list(SCHEDULERS)


def test_kubernetes_job_of_the_page_starts_every_shard():
    (text,) = [block for block in blocks("running.md", "yaml") if "kind: Job\n" in block]
    spec = yaml.safe_load(text)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    index = {"JOB_COMPLETION_INDEX": str(spec["completions"] - 1)}
    shard = parse_shard("auto", environment | index)
    assert (shard.number, shard.count) == (spec["completions"] - 1, spec["completions"])
    assert main([*container["args"], "--help"]) == 0


@pytest.mark.parametrize(
    ("code", "exit_code", "shards"), [(0, 0, 4), (3, 0, 4), (12, 0, 4), (17, 124, 1), (137, 124, 1)]
)
def test_loop_of_the_page_passes_over_shards_that_run_elsewhere(tmp_path, code, exit_code, shards):
    (loop,) = [block for block in blocks("running.md", "sh") if "xargs" in block]
    program = tmp_path / "pgcli"
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/started\nexit {code}\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", loop.partition("\npgcli")[0]], env=environment, check=False, timeout=60
    )
    assert done.returncode == exit_code
    started = re.findall(r"--shard (\d)/4", (tmp_path / "started").read_text())
    assert len(set(started)) == len(started) == shards


def headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_linked_files_and_headings_exist():
    for page in (*DOCS.glob("*.md"), *ROOT.glob("*.md")):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                name, _, heading = link.partition("#")
                target = page.parent / name if name else page
                assert target.exists(), (page.name, link)
                assert not heading or heading in headings(target), (page.name, link)


# --- the commands, in their order


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def run(folder: Path, *command: str, seconds: float = 250) -> str:
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    environment |= {"HF_HOME": str(folder / "cache")} | forkserver.install(folder / "bin")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, printable(done.stderr)
    return done.stdout


@pytest.fixture
def workspace(tmp_path) -> Path:
    """A folder with the examples where the pages expect them."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs").mkdir()
    return tmp_path


@pytest.mark.parametrize("page", ["results.md", "evaluation.md"])
@pytest.mark.slow
def test_commands_and_scripts_of_a_page_run(page, workspace):
    commands = "".join(blocks(page, "sh"))
    printed = run(workspace, "sh", "-c", f"set -e\n{commands}")
    assert all(block in printed for block in blocks(page, "") if block.startswith("  "))
    made = re.findall(r"(?:-o|--view|>) (runs/\S+)", commands)
    assert len(made) > 4
    assert [name for name in made if not (workspace / name).exists()] == []
    rows = (workspace / "runs" / "boxes.jsonl").read_text(encoding="utf-8").splitlines()
    assert [problem for line in rows for problem in wrong(json.loads(line))] == []
    for script in blocks(page, "python"):
        if script.startswith("boxes ="):  # tests/test_results.py runs it on an answer
            continue
        for name in ("datasets", "webdataset"):
            if re.search(rf"^(from|import) {name}", script, flags=re.MULTILINE):
                pytest.importorskip(name, reason="a development dependency")
        assert run(workspace, sys.executable, "-c", script)


def save_edits(folder: Path) -> None:
    """Save the edits of a person who relabels a box, accepts that row, and rejects the others."""
    rows = [json.loads(line) for line in (folder / "boxes.jsonl").read_text().splitlines()]
    edits = []
    for row in rows:
        key = {name: row[name] for name in ("index", "id", "prompt")}
        key["digest"] = answer_digest(row)
        corners = ("xmin", "ymin", "xmax", "ymax")
        boxes = [
            {name: box[name] for name in ("label", *corners)} | {"source": number}
            for number, box in enumerate(row["boxes"])
        ]
        if boxes:
            boxes[0]["label"] = "moon"
            edits.append(key | {"state": "accepted", "boxes": boxes})
        else:
            edits.append(key | {"state": "rejected"})
    assert any("boxes" in edit for edit in edits)
    document = {"format": "pgcli edits", "version": 1, "edits": edits}
    (folder / "boxes.edits.json").write_text(json.dumps(document))


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed on this machine")
@pytest.mark.parametrize("page", ["inputs.md", "running.md", "recipes.md"])
@pytest.mark.slow
def test_commands_of_a_page_run(page, tmp_path, monkeypatch):
    (tmp_path / "photos").mkdir()
    for name in ("one.png", "few.jpg", "blue.png"):
        shutil.copy(ROOT / "examples" / "images" / name, tmp_path / "photos")
    monkeypatch.setenv("PGCLI_MODEL", "demo")
    found = blocks(page, "sh")
    assert len(found) >= 4
    for block in found:
        if "pgcli apply" in block:
            save_edits(tmp_path)
        run(tmp_path, "bash", "-euo", "pipefail", "-c", block)


@pytest.mark.slow
def test_commands_and_scripts_of_the_page_of_two_towers_run(workspace):
    (workspace / "photos").symlink_to(ROOT / "examples" / "images")
    scores, search = blocks("two-towers.md", "sh")[:2]
    run(workspace, "sh", "-c", f"set -e\n{scores}{search}")
    assert {"photos.parquet", "page.html", "groups.jsonl"} <= {
        file.name for file in workspace.iterdir()
    }
    towers, arrays = blocks("two-towers.md", "python")
    assert "one.png" in run(workspace, sys.executable, "-c", towers)
    assert run(workspace, sys.executable, "-c", arrays).startswith("[[0, ")


@pytest.mark.slow
def test_commands_of_the_training_page_run(workspace):
    write_pairs(workspace, count=40)
    write_folders(workspace / "flowers", count=40)
    (workspace / "photos").symlink_to(ROOT / "examples" / "images")
    pages = blocks("training.md", "sh")
    commands, result_file = pages[0], next(block for block in pages if "detect photos" in block)
    others = [line for line in commands.splitlines() if "--task" in line]
    run(workspace, "sh", "-c", "\n".join(["set -e", *others, result_file]))
    assert (workspace / "runs" / "adapter" / "adapter_model.safetensors").is_file()
    for name in ("towers", "flowers", "probe"):
        assert (workspace / "runs" / name / "last" / "model.safetensors").is_file()
        assert (workspace / "runs" / name / "curves.png").is_file()


@pytest.mark.slow
def test_commands_that_train_paligemma_run(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    write_questions(workspace)
    commands = [
        line for line in blocks("training.md", "sh")[0].splitlines() if "--task" not in line
    ]
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    assert Path("runs/adapter/last/adapter_model.safetensors").is_file()
    assert Path("runs/whole/last/model.safetensors").is_file()


def new_shape() -> tuple[str, str, str]:
    """The command that draws, those that train and measure, and the script for PEFT."""
    text = (DOCS / "training.md").read_text(encoding="utf-8")
    section = text.split("## Teach a model something new")[1].split("\n## ")[0]
    drawings, commands = re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL)
    (script,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    return drawings, commands, script


@pytest.mark.slow
def test_command_of_the_first_lora_runs_and_draws_its_curves(workspace):
    """With four drawings and two updates."""
    (command,) = [block for block in blocks("training.md", "sh") if "runs/first" in block]
    short = re.sub(r"--epochs \d+", "--steps 2", command)
    assert "--steps 2" in short
    run(workspace, sys.executable, "-m", "examples.new_shape", "runs/hearts", "4")
    run(workspace, "sh", "-c", short)
    assert (workspace / "runs" / "first" / "curves.png").is_file()
    metrics = (workspace / "runs" / "first" / "metrics.jsonl").read_text(encoding="utf-8")
    assert "eval_exact" in json.loads(metrics.splitlines()[-1])


@pytest.mark.nightly
def test_built_in_model_learns_a_shape_from_sixty_drawings(workspace):
    """The accuracy on hearts rises by a quarter and more, and most of the rest is kept."""
    drawings, commands, script = new_shape()
    run(workspace, "sh", "-c", f"set -e\n{drawings}{commands}", seconds=7200)
    assert (workspace / "runs" / "hearts.html").is_file()
    printed = run(workspace, sys.executable, "-c", script)
    same, count = re.search(r"(\d+) of (\d+)", printed).groups()
    assert same == count

    def change(name: str, truth: str, metric: str) -> float:
        files = (f"runs/{name}before.jsonl", f"runs/{name}after.jsonl")
        words = ("--truth", f"runs/hearts/{truth}.jsonl", "--json", "-q")
        found = json.loads(run(workspace, sys.executable, "-m", "pgcli", "eval", *files, *words))
        return float(found["differences"][metric]["value"])

    assert change("", "questions", "exact") > 0.25
    assert change("known-", "known", "exact") > -0.15
    assert change("boxes-", "boxes", "f1@0.5") > 0.3


@pytest.mark.slow
def test_lines_of_the_python_page_run(workspace):
    scripts = blocks("python.md", "python")
    printed = run(workspace, sys.executable, "-c", "\n".join(scripts))
    one = "two red stars, a pink circle and a pink square on a white background"
    assert f"{{'{one}'}}" in printed.splitlines()  # one answer, however the image is held
    assert len((workspace / "runs" / "ask.jsonl").read_text().splitlines()) == 24
