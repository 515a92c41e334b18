"""The pages name tests that exist, their lines are short, and their commands run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pgcli.rows import answer_digest
from tests.support import forkserver
from tests.support.named_tests import known_in

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *Path(__file__).parent.glob("*.md"),
]
NAMED = re.compile(r"(?:tests/)?((?:\w+/)*test_\w+\.py)((?:::\w+)*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_named_by_a_page_exist(page: Path) -> None:
    for name, within in NAMED.findall(page.read_text()):
        assert known_in(name), name
        if within:
            assert tuple(within.removeprefix("::").split("::")) in known_in(name), within


def test_every_promise_has_a_test() -> None:
    promises, index = (Path(__file__).parent / "promises.md").read_text().split("\n## Tests\n")
    keys = re.findall(r"^(?:\| |- \*\*)([CIDSHF]\d+)\b", promises, re.M)
    tested = set(re.findall(r"^\| ([CIDSHF]\d+) \| `(?:\w+/)?test_", index, re.M))
    assert len(keys) > 90
    assert set(keys) - tested == set()


PROSE = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_lines_of_pages_have_at_most_120_columns(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    # the cells of a table cannot be wrapped
    lines = [line for line in text.splitlines() if not line.startswith("| ")]
    assert [line for line in lines if len(line) > 120] == []


def blocks(page: str) -> list[str]:
    """The commands of a page, block by block."""
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.M | re.S)


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
def test_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("one.png", "few.jpg", "blue.png"):
        shutil.copy(ROOT / "examples" / "images" / name, tmp_path / "photos")
    environment = os.environ | {"PGCLI_MODEL": "demo", "PYTHONPATH": str(ROOT)}
    environment |= forkserver.install(tmp_path / "bin")
    found = blocks(page)
    assert len(found) >= 4
    for block in found:
        if "pgcli apply" in block:
            save_edits(tmp_path)
        run = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert run.returncode == 0, f"{block}\n{run.stdout}\n{run.stderr}"
