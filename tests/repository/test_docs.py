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

from pgcli import errors
from pgcli.cli.main import main
from pgcli.records import (
    CLASSIFY_COLUMNS,
    COLUMNS,
    EMBED_COLUMNS,
    EXTRA_COLUMNS,
    SCORE_COLUMNS,
    TEXT_EMBED_COLUMNS,
    Choice,
    LabelProbability,
    Mask,
    Rle,
    TextScore,
)
from pgcli.registry import BUILT_IN
from pgcli.rows import RowSchema, answer_digest
from pgcli.run.request import SCHEDULERS
from pgcli.text import printable
from tests.support import forkserver
from tests.support.exporting import BOX, answer, refused
from tests.support.training import write_folders, write_pairs, write_questions

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
SCHEMA = json.loads((DOCS / "reference" / "row.schema.json").read_text(encoding="utf-8"))
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


def first_cells(page: str, heading: str) -> list[str]:
    """The names in the first cells of the tables below a heading, in order."""
    section = (DOCS / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    table = section.split("\n## ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_schema_and_page_name_every_column():
    assert SCHEMA["required"] == list(COLUMNS)
    assert list(SCHEMA["properties"]) == [*COLUMNS, *EXTRA_COLUMNS]
    assert first_cells("reference/rows.md", "Columns") == [*COLUMNS, *EXTRA_COLUMNS]


@pytest.mark.parametrize(
    ("name", "columns", "found"),
    [
        ("embedRow", EMBED_COLUMNS, {"embedding": array("f", [0.6, 0.8])}),
        ("textRow", TEXT_EMBED_COLUMNS, {"text": "a", "embedding": array("f", [0.6, 0.8])}),
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


def test_page_of_errors_has_every_code():
    page = (DOCS / "reference" / "exit-codes.md").read_text(encoding="utf-8")
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    raised = {kind.exit_code for kind in kinds if issubclass(kind, errors.PgcliError)}
    assert raised | {0, 3} == codes
    rows = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert rows == SCHEMA["properties"]["error"]["enum"][1:]


def test_index_names_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(DOCS)) for page in PAGES} - {"index.md"}
    assert {name for name in pages if f"({name}" not in index} == set()


def test_page_of_formats_names_every_format():
    assert first_cells("reference/formats.md", "Exports") == list(BUILT_IN["exports"])


def test_page_lists_the_variables_of_schedulers_in_their_order():
    page = (DOCS / "how-to" / "many-machines.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| `(\w+)` \| `(\w+)` \|$", page, flags=re.MULTILINE)
    assert rows == list(SCHEDULERS)


def headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in lines}


def test_linked_files_and_headings_exist():
    for page in (*PAGES, *ROOT.glob("*.md")):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                name, _, heading = link.partition("#")
                target = page.parent / name if name else page
                assert target.exists(), (page.name, link)
                assert not heading or heading in headings(target), (page.name, link)


def test_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="a development dependency")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in PAGES} - {"index"}
    pages = {name.removesuffix("/index") for name in pages}
    assert {name for name in pages if not (tmp_path / name / "index.html").is_file()} == set()


# --- the commands and scripts of the pages, in their order


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in a language; output has none."""
    text = (DOCS / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [block for name, block in fences if name == language]


def run(folder: Path, *command: str, seconds: float = 250, model: str = "") -> str:
    """What a command prints in a folder, with this model in PGCLI_MODEL."""
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    environment |= {"HF_HOME": str(folder / "cache")} | forkserver.install(folder / "bin")
    if model:
        environment["PGCLI_MODEL"] = model
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, printable(done.stderr)
    return done.stdout


@pytest.fixture
def workspace(tmp_path) -> Path:
    """A folder with what the pages name: photos/, examples/, runs/, and rows to train on."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "runs").mkdir()
    (tmp_path / "photos").mkdir()
    for name in ("one.png", "few.jpg", "blue.png"):
        shutil.copy(ROOT / "examples" / "images" / name, tmp_path / "photos")
    return tmp_path


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
            boxes[0]["label"] = "circle"
            edits.append(key | {"state": "accepted", "boxes": boxes})
        else:
            edits.append(key | {"state": "rejected"})
    assert any("boxes" in edit for edit in edits)
    (folder / "boxes.jsonl.edits.jsonl").write_text(
        "".join(f"{json.dumps(edit)}\n" for edit in edits)
    )
    document = {"format": "pgcli edits", "version": 1, "edits": edits}
    (folder / "boxes.edits.json").write_text(json.dumps(document))


#: Pages that other tests run, with fewer steps.
TRAINING = {
    "how-to/train-a-lora.md",
    "teach-a-new-shape.md",
    "how-to/train-a-classifier.md",
}
#: Pages whose commands need two towers.
TOWERS = {"how-to/search.md", "how-to/score-and-classify.md"}
RUN = [
    name
    for page in PAGES
    if not (name := str(page.relative_to(DOCS))).startswith("dev/")
    and name not in TRAINING
    and re.search(r"^```(sh|python)$", page.read_text(encoding="utf-8"), re.MULTILINE)
]


def expected_lines(output: str) -> list[str]:
    """The lines that a page shows, without those that it shortens."""
    return [line for line in output.splitlines() if not line.endswith("...")]


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed on this machine")
@pytest.mark.parametrize("page", RUN)
@pytest.mark.slow
def test_commands_and_scripts_of_a_page_run(page, workspace):
    if page == "tutorial.md":  # which makes the folder
        shutil.rmtree(workspace / "photos")
    printed = run_blocks(workspace, page)
    shown = [line for output in blocks(page, "") for line in expected_lines(output)]
    assert [line for line in shown if line not in printed.splitlines()] == []
    if scripts := blocks(page, "python"):
        printed = run(workspace, sys.executable, "-c", "\n".join(scripts))
        if page == "reference/python.md":  # one answer, however the image is held
            one = "two red stars, a pink circle and a pink square on a white background"
            assert f"{{'{one}'}}" in printed.splitlines()
    for rows in workspace.glob("boxes.jsonl"):
        lines = rows.read_text(encoding="utf-8").splitlines()
        assert [problem for line in lines for problem in wrong(json.loads(line))] == []


def written(page: str) -> set[str]:
    """The files that the shell commands of a page write, by -o or a redirection."""
    return set(re.findall(r"(?:-o|(?<!2)>) (\S+)", "\n".join(blocks(page, "sh"))))


#: How-to pages that write, or resume, a file of the tutorial.
SHARING = [page for page in RUN if "how-to/" in page and written(page) & written("tutorial.md")]


@pytest.fixture(scope="module")
def after_tutorial(tmp_path_factory) -> tuple[Path, Path]:
    """A folder in which the tutorial ran, without its long run, and a copy of it."""
    folder, copy = tmp_path_factory.mktemp("tutorial"), tmp_path_factory.mktemp("copy") / "copy"
    (folder / "examples").symlink_to(ROOT / "examples")
    run_blocks(folder, "tutorial.md", skip="many")
    shutil.copytree(folder, copy, symlinks=True)
    return folder, copy


def run_blocks(folder: Path, page: str, skip: str | None = None) -> str:
    """What the shell commands of a page print, without the blocks that name `skip`."""
    model = "demo-towers" if page in TOWERS else "demo"
    printed = ""
    for block in blocks(page, "sh"):
        if skip is not None and skip in block:
            continue
        if "pgcli apply" in block:
            save_edits(folder)
        printed += run(folder, "bash", "-euo", "pipefail", "-c", block, model=model)
    return printed


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed on this machine")
@pytest.mark.parametrize("page", SHARING)
@pytest.mark.slow
def test_commands_of_a_page_run_where_the_tutorial_ran(page, after_tutorial):
    folder, copy = after_tutorial
    shutil.rmtree(folder)  # the state of a run names the folder
    shutil.copytree(copy, folder, symlinks=True)
    run_blocks(folder, page)


@pytest.mark.slow
def test_commands_of_the_page_of_classifiers_run(workspace):
    write_pairs(workspace, count=40)
    write_folders(workspace / "flowers", count=40)
    commands, distilled = blocks("how-to/train-a-classifier.md", "sh")
    short = re.sub(r"(examples.new_shape \S+)", r"\1 24", distilled)
    short = re.sub(r"--epochs \d+", "--steps 2", short)
    run(workspace, "sh", "-c", f"set -e\n{commands}{short}")
    for name in ("towers", "flowers", "probe", "tiny"):
        assert (workspace / "runs" / name / "last" / "model.safetensors").is_file()
        assert (workspace / "runs" / name / "curves.png").is_file()


@pytest.mark.slow
def test_command_of_the_page_of_loras_runs(workspace, monkeypatch):
    monkeypatch.chdir(workspace)
    write_questions(workspace)
    command = blocks("how-to/train-a-lora.md", "bash")[0].splitlines()[0]
    words = shlex.split(command.replace("google/paligemma2-3b-pt-224", "demo"))[1:]
    assert main(words) == 0
    assert Path("runs/adapter/last/adapter_model.safetensors").is_file()
    assert main([*words[:-2], "--method", "full", "-o", "runs/whole"]) == 0
    assert Path("runs/whole/last/model.safetensors").is_file()


@pytest.mark.slow
def test_command_of_the_first_lora_runs_and_draws_its_curves(workspace):
    """With four drawings and two updates."""
    (command,) = [b for b in blocks("teach-a-new-shape.md", "sh") if "runs/first" in b]
    short = re.sub(r"--epochs \d+", "--steps 2", command)
    assert "--steps 2" in short
    run(workspace, sys.executable, "-m", "examples.new_shape", "runs/hearts", "4")
    run(workspace, "sh", "-c", short)
    assert (workspace / "runs" / "first" / "curves.png").is_file()
    metrics = (workspace / "runs" / "first" / "metrics.jsonl").read_text(encoding="utf-8")
    assert "eval_exact" in json.loads(metrics.splitlines()[-1])


def test_chart_has_the_figures_of_the_page_of_speed():
    sys.path.insert(0, str(DOCS))
    from chart import CHART, chart, speeds

    page = (DOCS / "explanation" / "speed.md").read_text(encoding="utf-8")
    assert CHART.read_text(encoding="utf-8") == chart(speeds(page))
