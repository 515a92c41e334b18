"""verify: this code against transformers on the user's own checkpoint, as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

from pgcli import __version__
from pgcli.checkpoints.find import find
from pgcli.cli.commands.info import check_revision
from pgcli.cli.ui import stdout
from pgcli.cli.ui.console import Screen
from pgcli.cli.ui.downloads import Downloads
from pgcli.errors import Difference
from pgcli.records import Item
from pgcli.sources import ReadOptions, open_sources

if TYPE_CHECKING:
    from pgcli.proof.compare import Numbers, Tokens
    from pgcli.proof.verdict import Proof


def verify(
    name: str,
    *,
    images: str | None,
    revision: str | None,
    device: str,
    dtype: str,
    as_json: bool,
) -> None:
    """Print what was compared and how far it lies apart; raise Difference where it is not the same.

    Pictures are the first few of `images`, or drawn ones.
    """
    check_revision(name, revision)
    given = None if images is None else open_sources([images], ReadOptions())
    screen = Screen()
    checkpoint = find(name, revision, progress=Downloads(screen))
    with screen.status("loading PyTorch and transformers"):
        from pgcli.proof import MOST_PICTURES, prove
        from pgcli.proof.patterns import patterns

        items: list[Item] = patterns() if given is None else [*islice(given, MOST_PICTURES)]
    proof = prove(checkpoint, items, device=device, dtype=dtype, waiting=screen.status)
    if as_json:
        about = {"name": name, "path": str(checkpoint.folder), "revision": checkpoint.revision}
        told = about | {"pgcli": __version__, "same": proof.same, "verdict": proof.verdict}
        stdout.print_json(told | asdict(proof))
    else:
        stdout.print_facts([*facts(proof)])
    if not proof.same:
        raise Difference(proof.verdict, hint=hint(proof))


def facts(proof: Proof) -> Iterator[tuple[str, str]]:
    """The proof as names and values, the verdict last."""
    yield "device", proof.device
    yield (
        "rows",
        f"{proof.rows} on {proof.pictures} pictures: one batch here, one by one in transformers",
    )
    yield (
        "prompts",
        {
            True: "the same tokens",
            False: f"other tokens in transformers: {proof.prompts.first!r}",
            None: f"not compared: {proof.prompts.reason}",
        }[proof.prompts.same],
    )
    if proof.levels is not None:
        largest, mean = proof.levels.largest, proof.levels.mean
        yield "preparation", f"{largest:.2g} of 255 levels apart at most, {mean:.2g} on average"
    for run in proof.comparisons:
        yield f"{run.dtype}: vision features", numbers(run.vision)
        yield f"{run.dtype}: prefill logits", numbers(run.logits)
        yield f"{run.dtype}: generated tokens", tokens(run.tokens)
        yield (
            f"{run.dtype}: time",
            f"{run.our_seconds:.1f} s here, {run.their_seconds:.1f} s in transformers",
        )
    for reason in proof.left_out:
        yield "left out", reason
    yield "verdict", proof.verdict


def numbers(stage: Numbers) -> str:
    """How far a stage's numbers lie apart, and what was allowed."""
    if stage.largest is None or stage.mean is None:
        return "different: some are not numbers"
    told = f"largest difference {stage.largest:.2g}, mean {stage.mean:.2g}"
    allowed = f"{stage.largest_bound:.2g}"
    if stage.mean_bound is not None:
        allowed += f" and {stage.mean_bound:.2g}"
    told += f"; allowed {allowed} of values up to {stage.scale:.3g}"
    if stage.floor is not None:
        told += f"; noise floor {stage.floor.largest:.2g}, mean {stage.floor.mean:.2g}"
    if stage.same:
        return f"same: {told}"
    return f"different: {told}; first at {place(stage)}"


def place(stage: Numbers) -> str:
    """Where a stage first differs: `row 0, patch 3, channel 7`."""
    names = ("row", "patch", "channel") if len(stage.first or ()) == 3 else ("row", "token")
    return ", ".join(f"{n} {at}" for n, at in zip(names, stage.first or (), strict=False))


def tokens(stage: Tokens) -> str:
    """How many tokens agree, and where rows part."""
    whole = stage.rows - len(stage.partings)
    told = f"{whole} of {stage.rows} rows to their end, {stage.agreeing} of {stage.tokens} tokens"
    if ties := sum(parting.tie for parting in stage.partings):
        told += f"; rows that part at a tie (logits within {stage.tie_bound:.2g}): {ties}"
    if stage.floor_partings is not None:
        told += f"; rows in which transformers parts from itself: {stage.floor_partings}"
    if stage.same:
        return f"same: {told}"
    first = next(parting for parting in stage.partings if not parting.tie)
    told += f"; first at row {first.row}, step {first.step}: {first.ours}, not {first.theirs}"
    return f"different: {told}" + ("" if first.gap is None else f", by {first.gap:.2g}")


def hint(proof: Proof) -> str:
    """What to do about a difference."""
    if any(run.parted for run in proof.comparisons):
        return "please report it, with what --json prints and the model's name"
    return "its prompts do not reach the model as transformers sends them: please report it"
