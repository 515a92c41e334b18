"""Hints on converting pickles and other files into a checkpoint that can be read."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

#: Suffixes of pickles, which can run code when they are read.
PICKLES = (".bin", ".pt", ".ckpt", ".pth")
CLASS = "PaliGemmaForConditionalGeneration"


def conversion_command(folder: str) -> str:
    """The command that adds safetensors to a folder of pickles; transformers reads them safely."""
    quoted = json.dumps(folder)
    code = (
        f"from transformers import {CLASS} as P; "
        f'P.from_pretrained({quoted}, dtype="auto").save_pretrained({quoted})'
    )
    return f"python -c {shlex.quote(code)}"


def repository_hint(name: str) -> str:
    """The commands that download a repository of pickles and add safetensors to it."""
    folder = name.rpartition("/")[2]
    fetch = f"hf download {shlex.quote(name)} --local-dir {shlex.quote(folder)}"
    return f"{fetch} && {conversion_command(folder)}, then --model {shlex.quote(folder)}"


def file_hint(name: str) -> str:
    """The hint for a file that is named as a model."""
    file = Path(name)
    if file.suffix == ".safetensors":
        return f"name its folder: --model {shlex.quote(str(file.parent))}"
    return (
        "name a checkpoint in the Hugging Face layout, such as google/paligemma-3b-mix-224, "
        "which has the weights of big_vision's .npz files"
    )
