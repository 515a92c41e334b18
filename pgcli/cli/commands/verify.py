"""verify: this code compared with transformers on the user's own checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from pgcli import __version__
from pgcli.cli.shared_options import Device, Dtype, Json, Revision, images_option
from pgcli.cli.typer_app import command
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.errors import Difference
from pgcli.run.request.options import models


@command(
    "verify",
    "Runs both on the same inputs and reports the differences of vision features, prefill logits "
    "and generated tokens; of embeddings and logits for SigLIP, CLIP and image classifiers.\n\n"
    "MODEL is a folder, a name on the Hub, or demo, the built-in model. --dtype auto compares in "
    "float32 and also in bfloat16. Exits with 5 if they differ by more than rounding.",
    epilog="$ pgcli verify demo\n$ pgcli verify google/paligemma-3b-mix-224 --images photos",
)
def verify(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", hidden=True, autocompletion=models),
    ],
    images: Annotated[
        str | None,
        images_option("Compare on the first 8 images of a folder.", default="drawn images"),
    ] = None,
    json: Json = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    from pgcli.cli.find_model import find_model
    from pgcli.cli.ui import proof_report
    from pgcli.inputs import Inventory

    source = None if images is None else Inventory.scan([images])
    screen = Screen()
    checkpoint = find_model(model, revision, screen)
    with screen.status("loading PyTorch and transformers"):
        from pgcli.proof import MAX_IMAGES, prove
        from pgcli.proof.generated_images import default_images
        from pgcli.proof.tower_report import TowerProof

        items = default_images() if source is None else [*source.items(0, MAX_IMAGES)]
    proof = prove(checkpoint, items, device=device, dtype=dtype, waiting=screen.status)
    if isinstance(proof, TowerProof):
        facts, hint = proof_report.tower_facts(proof), proof_report.tower_hint(proof)
    else:
        facts, hint = proof_report.facts(proof), proof_report.hint(proof)
    if json:
        named = {"name": model, "path": str(checkpoint.folder), "revision": checkpoint.revision}
        verdict = {"pgcli": __version__, "same": proof.same, "verdict": proof.verdict}
        stdout.print_json(named | verdict | asdict(proof))
    else:
        stdout.print_facts([*facts])
    if not proof.same:
        raise Difference(proof.verdict, hint=hint)
