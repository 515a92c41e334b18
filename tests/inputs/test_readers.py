"""One more kind of manifest is one file and one line in a table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pgcli.errors import ManifestError
from pgcli.inputs import Inventory, readers, tables
from pgcli.inputs.lines import lines
from pgcli.inputs.readers import InputFile, ManifestReader, ManifestRow, Mark, Wanted
from tests.inputs.items import items


def rows(file: InputFile, wanted: Wanted) -> Iterator[tuple[Mark, ManifestRow]]:
    """A row for each line that is not blank. Raises ManifestError."""
    for mark, line in lines(file, wanted.mark):
        position = f"{file.name}, line {mark.number + 1}"
        try:
            path = line.decode().strip()
        except UnicodeDecodeError as problem:
            raise ManifestError(f"{position}: it is not UTF-8") from problem
        yield mark, ManifestRow(position, {wanted.image_column: path})


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pgcli.inputs.lst")
    module.__dict__["LST"] = ManifestReader(rows, grows=True)
    monkeypatch.setitem(sys.modules, "pgcli.inputs.lst", module)
    monkeypatch.setitem(readers.READERS, ".lst", "lst.LST")  # type: ignore[arg-type]
    monkeypatch.setattr(tables, "EVERY", 2)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["few.lst", "*.lst"])
def test_manifest_kind_needs_a_file_and_a_line(name: str) -> None:
    Path("few.lst").write_text("a.png\n\nsub/c.png\n../b.jpg\nd.png\n")
    found = items(name)
    assert [item.path for item in found] == ["a.png", "sub/c.png", None, "d.png"]
    assert found[2].fault is not None
    assert found[2].fault.code == "path_not_allowed"
    inventory = Inventory.scan([name])
    assert [list(inventory.items(n, n + 1)) for n in range(4)] == [[item] for item in found]
    with open("few.lst", "a") as file:
        file.write("e.png\n")
    grown = Inventory.scan([name], known=inventory)
    assert [item.id for item in grown][4:] == ["e.png"]
    assert inventory.kinds == {"rows of .lst": 4}
