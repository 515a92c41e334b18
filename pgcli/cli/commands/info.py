"""info: print a model's sizes and the memory it needs, without loading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from pgcli.cli.options import CliCall, JsonOptions, LoadOptions, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.declare import same
from pgcli.errors import UsageError
from pgcli.run.progress.events import Facts
from pgcli.run.request.options import ModelOptions, models
from pgcli.text import byte_count

FAMILIES = {"siglip": "SigLIP", "clip": "CLIP", "vit": "ViT", "mean": "vision tower alone"}

ModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", hidden=True, autocompletion=models)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoOptions(JsonOptions):
    """The options of `info`."""

    quantize: Literal["none", "int8", "fp8"] = same(ModelOptions, "quantize")


@command(
    "info",
    "MODEL is a folder, a name on the Hub, or demo, the built-in model, which is the default; "
    "PaliGemma, SigLIP, CLIP, or an image classifier.",
    InfoOptions,
    LoadOptions,
    examples="$ pgcli info demo\n$ pgcli info google/paligemma2-3b-mix-224 --quantize int8",
)
def info(call: CliCall, model: ModelArgument = None) -> None:
    from pgcli.cli.find_model import default_model, find_model

    shown, options = call.build(InfoOptions), call.build(LoadOptions)
    checkpoint = find_model(call, model or default_model(), Screen())
    from pgcli.checkpoints.model_description import read_description
    from pgcli.info.model_info import (
        model_info,
        tower_info,  # torch, which takes a second
    )

    description = read_description(checkpoint.folder)
    if description.kind == "paligemma":
        values = model_info(
            checkpoint, device=options.device, dtype=options.dtype, quantize=shown.quantize
        )
    elif shown.quantize != "none":
        raise UsageError(
            f"--quantize does not apply to {checkpoint.name}",
            hint="only models that generate text can be quantized",
        )
    else:
        values = tower_info(checkpoint, description, device=options.device, dtype=options.dtype)
    if shown.json:
        stdout.print_json(values)
    else:
        stdout.print_facts(info_facts(values))


def info_facts(values: Mapping[str, Any]) -> Facts:
    """The values as rows of a table: bytes in units, one row for each entry of a mapping."""
    rows = []
    for name, value in values.items():
        if name == "memory":
            rows += [(f"batch of {batch}", byte_count(needed)) for batch, needed in value.items()]
        elif name == "architecture":
            rows += architecture_rows(value)
        elif name.endswith("bytes") or name in ("cache_bytes_per_token", "free_memory"):
            rows.append((name.replace("_bytes", "").replace("_", " "), byte_count(value)))
        elif name == "files":
            rows += [(file, byte_count(length)) for file, length in value.items()]
        elif name == "labels":
            rows += [("labels", labels(value))] if value else []
        elif value is not None:
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            rows.append((name.replace("_", " "), shown))
    return rows


def labels(names: Sequence[str]) -> str:
    """The number of a classifier's labels, and the first of them."""
    shown = ", ".join(names[:5])
    return f"{len(names):,}: {shown}" + (", ..." if len(names) > 5 else "")


def architecture_rows(values: Mapping[str, Any]) -> Facts:
    """One row for each tower, with the sizes that distinguish checkpoints."""
    if "decoder" not in values:
        sizes = "width {width}, {depth} layers, mlp {mlp_dim}, {num_heads} heads, {activation}"
        towers = [(name, values[name]) for name in ("vision", "text")]
        return [
            ("family", FAMILIES[values["family"]]),
            *((name, sizes.format_map(tower)) for name, tower in towers if tower is not None),
        ]
    generation = {1: "PaliGemma (Gemma)", 2: "PaliGemma 2 (Gemma 2)"}[values["generation"]]
    vision, decoder = values["vision"], values["decoder"]
    sizes = "width {width}, {depth} layers, mlp {mlp_dim}, {num_heads} heads"
    kv = ", key/value heads {num_kv_heads} x {head_dim}"
    rows = [
        ("generation", generation),
        ("vision", sizes.format_map(vision)),
        ("decoder", (sizes + kv).format_map(decoder)),
    ]
    if decoder["sliding_window"] is not None and any(decoder["sliding_layers"]):
        count = sum(decoder["sliding_layers"])
        rows.append(("sliding window", f"{decoder['sliding_window']} tokens in {count} layers"))
    softcaps = [decoder["attn_softcap"], decoder["final_softcap"]]
    if any(softcaps):
        rows.append(("soft caps", "attention {}, logits {}".format(*softcaps)))
    return rows
