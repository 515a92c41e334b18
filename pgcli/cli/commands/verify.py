"""verify: this code compared with transformers on the user's own checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from pgcli import __version__
from pgcli.cli.options import CliCall, JsonOptions, LoadOptions, SourceOptions, command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.declare import same
from pgcli.errors import Difference
from pgcli.run.request.options import models
from pgcli.run.request.values import Dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(LoadOptions):
    """The options of `verify`."""

    source: str | None = same(SourceOptions, "source")
    dtype: Dtype = same(  # noqa: RUF009
        LoadOptions, "dtype", "Data types to compare in; auto is float32, then bfloat16."
    )


@command(
    "verify",
    "Runs pgcli and transformers on the same inputs and compares vision features, prefill logits "
    "and generated tokens; embeddings and logits of SigLIP, CLIP and image classifiers.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in model. Exits with 5 if "
    "results differ by more than rounding.",
    VerifyOptions,
    JsonOptions,
    examples="$ pgcli verify demo\n$ pgcli verify google/paligemma2-3b-mix-224 --source photos",
)
def verify(
    model: Annotated[str, typer.Argument(metavar="MODEL", hidden=True, autocompletion=models)],
    call: CliCall,
) -> None:
    from pgcli.cli.find_model import find_model
    from pgcli.cli.ui import verify_report
    from pgcli.inputs import Inventory

    options = call.build(VerifyOptions)
    source = None if options.source is None else Inventory.scan([options.source])
    screen = Screen()
    checkpoint = find_model(call, model, screen)
    with screen.status("loading PyTorch and transformers"):
        from pgcli.verify import prove
        from pgcli.verify.images import MAX_IMAGES, default_images

        items = default_images() if source is None else [*source.items(0, MAX_IMAGES)]
    proof = prove(
        checkpoint, items, device=options.device, dtype=options.dtype, waiting=screen.status
    )
    if call.build(JsonOptions).json:
        named = {"name": model, "path": str(checkpoint.folder), "revision": checkpoint.revision}
        verdict = {"pgcli": __version__, "same": proof.same, "verdict": proof.verdict}
        stdout.print_json(named | verdict | asdict(proof))
    else:
        stdout.print_facts([*verify_report.verify_facts(proof)])
    if not proof.same:
        raise Difference(proof.verdict, hint=verify_report.hint(proof))
