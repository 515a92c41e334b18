"""One more kind of manifest is one file and one line in a table."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pgcli.inputs import Inventory, readers, tables
from pgcli.inputs.lines import LineTable
from tests.inputs.items import items


class ListTable(LineTable):
    """A table whose lines are paths of images."""

    def values(self, line: bytes) -> dict[str, Any]:
        try:
            return {self.image_column: line.decode().strip()}
        except UnicodeDecodeError as problem:
            raise ValueError("it is not UTF-8") from problem


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pgcli.inputs.lst")
    module.__dict__["ListTable"] = ListTable
    monkeypatch.setitem(sys.modules, "pgcli.inputs.lst", module)
    monkeypatch.setitem(readers.READERS, ".lst", "lst.ListTable")  # type: ignore[arg-type]
    monkeypatch.setattr(tables, "EVERY", 2)


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
