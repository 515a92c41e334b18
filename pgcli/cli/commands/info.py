"""info: what a model is and what it needs, without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgcli.checkpoints.find import DEMO, find
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Facts, Screen
from pgcli.cli.ui.downloads import Downloads
from pgcli.errors import UsageError


def check_revision(name: str, revision: str | None) -> None:
    """Raise UsageError for a revision of a model that is on this machine only, and has one."""
    if revision and (name == DEMO or Path(name).expanduser().is_dir()):
        raise UsageError(
            f"{name} has no revisions to choose from", hint="--revision goes with a name on the Hub"
        )


def remark_idle_gpu(screen: Screen) -> None:
    """Say why the CPU answers where there is a GPU, unless somebody has hidden it on purpose."""
    from pgcli.device.nvidia_driver import unused_gpu

    if (trouble := unused_gpu()) and not trouble.is_meant:
        screen.info(f"the CPU answers, not the GPU: {trouble.found}", hint=trouble.remedy)


def info(name: str, *, revision: str | None, device: str, dtype: str, as_json: bool) -> None:
    """Print what is known of a model, for a person or as one JSON object."""
    check_revision(name, revision)
    checkpoint = find(name, revision, progress=Downloads(Screen()))
    from pgcli.engine.model_info import model_info  # torch, which takes a second

    known = model_info(checkpoint, device=device, dtype=dtype)
    if as_json:
        stdout.print_json(known)
    else:
        stdout.print_facts(worded(known))


def worded(known: Mapping[str, Any]) -> Facts:
    """The facts as a person reads them: large numbers in units, mappings a line each."""
    facts = []
    for name, value in known.items():
        if name == "memory":
            facts += [(f"batch of {rows}", size(need)) for rows, need in value.items()]
        elif name == "architecture":
            facts += architecture(value)
        elif name.endswith("bytes") or name in ("cache_bytes_per_token", "free_memory"):
            facts.append((name.replace("_bytes", "").replace("_", " "), size(value)))
        elif name == "files":
            facts += [(file, size(length)) for file, length in value.items()]
        elif value is not None:
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            facts.append((name.replace("_", " "), shown))
    return facts


def architecture(known: Mapping[str, Any]) -> Facts:
    """A line for each tower, with the sizes that tell checkpoints apart."""
    generation = {1: "PaliGemma (Gemma)", 2: "PaliGemma 2 (Gemma 2)"}[known["generation"]]
    vision, decoder = known["vision"], known["decoder"]
    sizes = "width {width}, {depth} layers, mlp {mlp_dim}, {num_heads} heads"
    kv = ", {num_kv_heads} key/value heads of {head_dim}"
    lines = [
        ("generation", generation),
        ("vision", sizes.format_map(vision)),
        ("decoder", (sizes + kv).format_map(decoder)),
    ]
    if decoder["window"] is not None and any(decoder["window_layers"]):
        count = sum(decoder["window_layers"])
        lines.append(("sliding window", f"{decoder['window']} tokens in {count} layers"))
    caps = [decoder["attention_cap"], decoder["final_cap"]]
    if any(caps):
        lines.append(("soft caps", "attention {}, logits {}".format(*caps)))
    return lines


def size(count: int) -> str:
    """Bytes in the unit in which they are a small number: `5.8 GB`."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = 0
    while count >= 1000 ** (power + 1) and power < len(units) - 1:
        power += 1
    return f"{count / 1000**power:.{1 if power else 0}f} {units[power]}"
