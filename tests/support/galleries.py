"""Rows and images for the tests of the gallery."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pgcli.cli.main import main
from pgcli.rle import encode_mask_parts
from pgcli.rows import BOX_NUMBERS
from tests.support import exporting

CANARY = "window.canary=1"
#: Foreign text that attacks a page; it is shown as text.
HOSTILE = (
    f"<img src=x onerror={CANARY}>",
    f"</script><script>{CANARY}</script>",
    f"--></title><svg onload={CANARY}>",
    f"<!--<script>{CANARY}",
    f"javascript:{CANARY}",
    f'" onclick="{CANARY}" x="',
    f"${{{CANARY}}}`;{CANARY};//",
    "[bold]not bold[/bold]",
    "http://example.com/a.png",
    "//example.com/a.png",
    "name\u202egnp.exe",
    "one\nline and\r\nanother\x1b[2J",
    "\ud800 half",
    "'; drop $title $script",
)


def row(index: int = 0, **changes: Any) -> dict[str, Any]:
    """A row as `caption` writes it, with changes."""
    name = f"{index:05}.png"
    known = {"id": name, "image": name, "width": 40, "height": 30, "task": "caption"}
    known |= {"prompt": "caption en", "answer": "an image"}
    return exporting.row(index, **known) | changes


def box(label: str, *corners: float, score: float = 0.5) -> dict[str, Any]:
    xmin, ymin, xmax, ymax = corners or (4, 3, 20, 15)
    numbers = (xmin, ymin, xmax, ymax, score, score)
    return {"label": label, **dict(zip(BOX_NUMBERS, numbers, strict=True))}


def failed(index: int, error: str = "truncated", message: str = "It ends early.") -> dict[str, Any]:
    nothing = dict.fromkeys(("answer", "tokens", "finish", "logprob", "batch"))
    nothing |= dict.fromkeys(("vision_ms", "prefill_ms", "decode_ms"))
    return row(index, error=error, error_message=message, **nothing)


def hostile() -> list[dict[str, Any]]:
    """Rows with hostile text in every text field, including column names."""
    rows = []
    for number, text in enumerate(HOSTILE):
        words = {"id": text, "image": text, "prompt": text, "model": text, text: text}
        found = [box(text), {"label": text, "xmin": text}, text]
        rows.append(row(2 * number, answer=text, boxes=found, task=text, finish=text, **words))
        rows.append(failed(2 * number + 1, text, text) | words)
    rows[0]["choices"] = [{"text": text, "logprob": text, "probability": text} for text in HOSTILE]
    return rows


def drawn(folder: Path, count: int, size: tuple[int, int] = (40, 30)) -> None:
    """Single-coloured images with the names in the rows."""
    for number in range(count):
        colour = (number * 37 % 256, number * 91 % 256, 160)
        Image.new("RGB", size, colour).save(folder / f"{number:05}.png")


def gallery(folder: Path, rows: list[dict[str, Any]], *options: str) -> Path:
    """The page of these rows, whose images are in the folder."""
    file = exporting.saved(folder / "rows.jsonl", rows)
    page = folder / "gallery.html"
    arguments = ["view", str(file), "-o", str(page), "--images", str(folder), *options]
    assert main([*arguments, "--quiet", "--overwrite"]) == 0
    return page


def sample_rows() -> list[dict[str, Any]]:
    """Four answers, of which two have boxes and one a mask, and two errors."""
    ring = np.hypot(*np.ogrid[-10:10, -10:10]) < 9
    ring[:10, 10:] = False
    mask = encode_mask_parts([(ring, 5, 5)], size=(30, 40))
    masks = [{"codes": [0] * 16, "rle": {"size": [30, 40], "counts": mask.counts}}]
    return [
        row(0, answer="a red cat", logprob=-0.5, decode_ms=1.0),
        row(1, answer="a blue dog", logprob=-0.1, decode_ms=9.0),
        row(2, answer="<loc0001>", boxes=[box("cat"), box("dog")], prompt="detect", logprob=-0.9),
        row(3, answer="", boxes=[box("cat", 5, 5, 25, 25)], masks=masks, logprob=-0.7),
        failed(4),
        failed(5, "missing", "There is no such file."),
    ]
