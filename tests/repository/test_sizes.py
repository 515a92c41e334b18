"""No package has more lines than its bound, and neither have the tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pgcli"
TESTS = "tests"
#: The most lines of each package, or of several files together; blank lines and docstrings count.
BOUNDS = {
    "pipeline": 7_890,
    "inputs": 4_700,
    "stores": 2_380,
    "images": 2_610,
    "output": 1_165,
    "results": 7_100,
    "engine device": 3_535,
    "model": 4_275,
    "checkpoints": 3_855,
    "towers": 755,
    "training": 5_315,
    "evaluation": 2_780,
    "search": 640,
    "api runs.py ray.py __init__.py __main__.py": 1_360,
    "explain doctor info verify bench": 3_230,
    "cli": 4_180,
    (
        "records.py errors.py rows.py parsing.py regions.py rle.py printable.py "
        "wording.py foreign_text.py process_end.py declare.py box_filter.py "
        "boxes.py arrow_types.py arrow_values.py labelled_rows.py registry.py "
        "tasks"
    ): 3_125,
    "tests": 53_555,
}


def lines(name: str) -> int:
    """The lines of a file or folder of the package, or of the tests."""
    path = ROOT / name if name == TESTS else PACKAGE / name
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text().splitlines()) for file in files)


def test_no_package_has_more_lines_than_its_bound():
    larger = {
        names: count
        for names, bound in BOUNDS.items()
        if (count := sum(map(lines, names.split()))) > bound
    }
    assert not larger, "take lines out, or raise the bound and give the reason in the commit"


def test_bounds_name_each_package_once():
    named = [name for names in BOUNDS for name in names.split()]
    packages = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py"}
    packages |= {file.relative_to(PACKAGE).parts[0] for file in PACKAGE.glob("*/**/*.py")}
    assert sorted(named) == sorted({*packages, TESTS})
