"""No room has more lines than CONTRIBUTING allows it, and neither have the tests."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pgcli"
TESTS = "tests"
ROW = re.compile(r"\| ((?:`[\w./]+` ?)+)\| ([\d,]+) \|")


def allowed() -> dict[tuple[str, ...], int]:
    """The most lines of the files and folders of each row of the table."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Sizes\n")[2].partition("\n## ")[0]
    return {
        tuple(re.findall(r"`([^`]+)`", row[1])): int(row[2].replace(",", ""))
        for row in ROW.finditer(text)
    }


def lines(name: str) -> int:
    """The lines of a file or folder of the package, or of the tests."""
    path = ROOT / name if name == TESTS else PACKAGE / name
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text().splitlines()) for file in files)


def test_no_room_has_more_lines_than_it_may():
    larger = {
        names: count
        for names, most in allowed().items()
        if (count := sum(map(lines, names))) > most
    }
    assert not larger, "take lines out, or say in CONTRIBUTING what the new ones are for"


def test_the_table_names_each_room_once():
    named = [name for names in allowed() for name in names]
    rooms = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py"}
    rooms |= {file.relative_to(PACKAGE).parts[0] for file in PACKAGE.glob("*/**/*.py")}
    assert sorted(named) == sorted({*rooms, TESTS})
