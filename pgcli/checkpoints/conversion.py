"""What makes a checkpoint of pickles, or of another program, one that is read here."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

#: How the names of pickles end, which can run code when they are read.
PICKLES = (".bin", ".pt", ".ckpt", ".pth")
CLASS = "PaliGemmaForConditionalGeneration"


def command(folder: str) -> str:
    """The command that adds safetensors to a folder of pickles; transformers reads those safely."""
    place = json.dumps(folder)
    code = (
        f"from transformers import {CLASS} as P; "
        f'P.from_pretrained({place}, dtype="auto").save_pretrained({place})'
    )
    return f"python -c {shlex.quote(code)}"


def of_repository(name: str) -> str:
    """The commands that fetch a repository of pickles and add safetensors to it."""
    folder = name.rpartition("/")[2]
    fetch = f"hf download {shlex.quote(name)} --local-dir {shlex.quote(folder)}"
    return f"{fetch} && {command(folder)}, then --model {shlex.quote(folder)}"


def of_file(name: str) -> str:
    """What to do where a file is named for a model, which is a folder."""
    file = Path(name)
    if file.suffix == ".safetensors":
        return f"name the folder that it lies in: --model {shlex.quote(str(file.parent))}"
    return (
        "PaliGemma checkpoints in the Hugging Face layout are read, such as "
        "google/paligemma-3b-mix-224, which has the weights of big_vision's .npz files"
    )
