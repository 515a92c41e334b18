"""Selects the files of a repository that are read: never a pickle, never code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Literal

from pgcli.checkpoints import conversion_hints
from pgcli.checkpoints.generation_config import GENERATION
from pgcli.checkpoints.json_file import read_json
from pgcli.checkpoints.model_description import has_text_tower
from pgcli.checkpoints.processor_files import IMAGE_PROCESSOR_FILES
from pgcli.checkpoints.weight_files import (
    INDEX,
    OPEN_CLIP_CONFIG,
    OPEN_CLIP_SINGLE,
    SHARD_NAME,
    SINGLE,
    file_names,
    is_open_clip,
    weight_map,
)
from pgcli.errors import InvalidCheckpoint

Kind = Literal["model", "adapter"]

CONFIG: dict[Kind, str] = {"model": "config.json", "adapter": "adapter_config.json"}
ALONE: dict[Kind, str] = {"model": SINGLE, "adapter": "adapter_model.safetensors"}
TOKENIZER = "tokenizer.json"
# the names of the tokens that end and pad texts
TOKEN_NAMES = ("tokenizer_config.json", "special_tokens_map.json")
# the files of a tokenizer without a tokenizer.json
SENTENCEPIECE = (
    "tokenizer.model",
    "spiece.model",
    "added_tokens.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


def required_files(
    repository: str, kind: Kind, names: Collection[str], index: Callable[[], Path]
) -> list[str]:
    """The files that are read, among the names of a repository's files; weights come last.

    `index` returns the path of the index of the weights; it is called only if `names` has one.
    Raises InvalidCheckpoint if the configuration or the weights are missing.
    """
    if kind == "model" and is_open_clip(names):
        weights = [name for name in (OPEN_CLIP_SINGLE, SINGLE) if name in names][:1]
        return [
            OPEN_CLIP_CONFIG,
            *_tokenizer(names),
            *(weights or _single(repository, kind, names)),
        ]
    if CONFIG[kind] not in names:
        raise _no_configuration(repository, kind, names)
    if kind == "adapter":
        return [CONFIG[kind], *_single(repository, kind, names)]
    described = [
        CONFIG[kind],
        *_tokenizer(names),
        *_among((GENERATION, *IMAGE_PROCESSOR_FILES), names),
    ]
    if INDEX not in names:
        return [*described, *_single(repository, kind, names)]
    shards = sorted(set(weight_map(index()).values()))
    for shard in shards:
        if shard not in names:
            raise InvalidCheckpoint(
                f"{repository} has no {shard}, which its {INDEX} names",
                hint="choose another --revision, or report the missing file to the owner",
            )
    return [*described, INDEX, *shards]


def complete_files(kind: Kind, folder: Path) -> list[str]:
    """The files that are read from a snapshot in the cache; none if one of them is missing."""
    names = file_names(folder)
    try:
        files = required_files(folder.name, kind, names, lambda: folder / INDEX)
    except InvalidCheckpoint:
        return []
    if kind == "adapter" or any(file in files for file in (TOKENIZER, *SENTENCEPIECE[:2])):
        return files
    if CONFIG[kind] not in files:  # open_clip's layout
        return []
    try:
        return [] if has_text_tower(read_json(folder / CONFIG[kind])) else files
    except InvalidCheckpoint:
        return []


def _tokenizer(names: Collection[str]) -> list[str]:
    """The tokenizer's files: one that has it all and the names of its tokens, or the others."""
    return (
        [TOKENIZER, *_among(TOKEN_NAMES, names)]
        if TOKENIZER in names
        else _among(SENTENCEPIECE, names)
    )


def _among(files: Iterable[str], names: Collection[str]) -> list[str]:
    return [file for file in files if file in names]


def _single(repository: str, kind: Kind, names: Collection[str]) -> list[str]:
    """The weight files of a repository without an index."""
    if ALONE[kind] in names:
        return [ALONE[kind]]
    weights = [name for name in sorted(names) if SHARD_NAME.fullmatch(name)]
    if kind == "model" and weights:
        return weights
    pickles = [name for name in sorted(names) if name.endswith(conversion_hints.PICKLES)]
    remedy = "save it again with PEFT: save_pretrained writes safetensors"
    if kind == "model":
        remedy = f"convert it: {conversion_hints.repository_hint(repository)}"
    raise InvalidCheckpoint(
        f"{repository} has no {ALONE[kind]}"
        + (f"; {pickles[0]} is a pickle, which can run code" if pickles else ""),
        hint="look for a --revision with safetensors" + (f"; or {remedy}" if pickles else ""),
    )


def _no_configuration(repository: str, kind: Kind, names: Collection[str]) -> InvalidCheckpoint:
    if kind == "model" and CONFIG["adapter"] in names:
        return InvalidCheckpoint(
            f"{repository} is an adapter, not a model",
            hint="name the model it was made for with --model, and this one with --adapter",
        )
    return InvalidCheckpoint(
        f"{repository} has no {CONFIG[kind]}",
        hint=f"{'an adapter' if kind == 'adapter' else 'a checkpoint'} is a folder or a "
        "repository in the Hugging Face layout",
    )
