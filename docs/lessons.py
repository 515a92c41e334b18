"""Writes what the lessons print and draw into their pages, and makes notebooks of them.

python docs/lessons.py                   # outputs and figures of the pages
python docs/lessons.py --notebooks DIR   # a notebook of each lesson
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "explanation" / "lessons"
FIGURES = ROOT / "docs" / "images" / "lessons"
#: The block of a page with a lesson's command and what it prints.
BLOCK = re.compile(r"^```console\n\$ python (examples/lessons/(\w+)\.py)\n(.*?)^```$", re.M | re.S)
COLOURS = 128  # in a figure; more make files twice as large
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)[^)]*\)")


def run(*arguments: str) -> str:
    """What a program of the checkout prints."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def lessons() -> Iterator[tuple[str, str]]:
    """The names of the lessons, and the text of their pages."""
    for page in sorted(PAGES.glob("*.md")):
        if page.stem != "index":
            yield page.stem, page.read_text(encoding="utf-8")


def update(name: str, page: str) -> None:
    """Write what a lesson prints into its page, and its figure beside the others."""
    from PIL import Image

    printed = run(f"examples/lessons/{name}.py", *(["--out", str(FIGURES)] if "![" in page else []))
    new = BLOCK.sub(lambda block: f"```console\n$ python {block[1]}\n{printed}```", page)
    (PAGES / f"{name}.md").write_text(new, encoding="utf-8")
    if "![" in page:
        figure = FIGURES / f"{name}.png"
        colours = Image.open(figure).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        colours.save(figure, optimize=True)


def notebook(name: str, page: str) -> Any:
    """A lesson's page without outputs and links, then its program, output and figure."""
    import jupytext
    from nbformat.v4 import new_code_cell, new_markdown_cell

    program = (ROOT / "examples" / "lessons" / f"{name}.py").read_text(encoding="utf-8")
    code = jupytext.reads(program.partition("# %%\nif __name__")[0], fmt="py:percent")
    text = LINK.sub(lambda link: "" if link[1] else link[2], BLOCK.sub("", page))
    cells = [new_markdown_cell(text)]
    for cell in code.cells:
        if title := cell.metadata.pop("title", None):  # of `# %% title`
            cells.append(new_markdown_cell(f"### {title}"))
        cells.append(cell)
    results = ["main()"] + ["figure();"] * ("def figure" in program)
    code.cells = [*cells, *map(new_code_cell, results)]
    return code


if __name__ == "__main__":
    if "--notebooks" in sys.argv:
        import nbformat

        folder = Path(sys.argv[-1])
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in lessons():
            nbformat.write(notebook(name, page), folder / f"{name}.ipynb")
    else:
        for name, page in lessons():
            update(name, page)
