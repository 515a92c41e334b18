"""The lines of docs/how-to/use-from-python.md that make detections for supervision."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy
import pycocotools.mask

from pgcli.records import Answer


def detections(supervision: Any, row: Answer) -> Any:
    """The detections from the page's lines for an answer."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "use-from-python.md"
    text = page.read_text(encoding="utf-8")
    (lines,) = re.findall(r"```text\n(boxes = .*?)```", text, flags=re.DOTALL)
    made: dict[str, Any] = {"answer": row, "np": numpy, "sv": supervision}
    made |= {"labels": ["dog", "red car"], "pycocotools": pycocotools, "dataclasses": dataclasses}
    exec(lines, made)
    return made["detections"]
