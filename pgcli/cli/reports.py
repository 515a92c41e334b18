"""The report of `pgcli verify`: the differences between pgcli and transformers, by stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pgcli.text import count

if TYPE_CHECKING:
    from pgcli.verify.compare import TensorComparison, TokenComparison
    from pgcli.verify.preprocessing import PixelComparison, PromptComparison
    from pgcli.verify.report import Proof

#: Why `logprob` may differ from another program's on the same logits.
LOGPROB = (
    "pgcli's softmax leaves out padded rows of the vocabulary and the image token, which are "
    "never answered, so it may be slightly higher"
)


def verify_facts(proof: Proof) -> Iterator[tuple[str, str]]:
    """The proof as names and values, the verdict last."""
    from pgcli.verify.compare import TokenComparison

    yield "device", proof.device
    images = count(proof.images, "image")
    inputs = images if proof.rows is None else f"{proof.rows} on {images}"
    name, texts = ("images", "texts") if proof.rows is None else ("rows", "prompts")
    yield name, f"{inputs}: pgcli in one batch, {proof.program} one by one"
    if proof.texts is not None:
        yield texts, same_tokens(proof.texts)
    if proof.levels is not None:
        yield "preprocessing", pixel_difference(proof.levels)
    for run in proof.comparisons:
        for stage in run.stages:
            text = tokens(stage) if isinstance(stage, TokenComparison) else number_difference(stage)
            yield f"{run.dtype}: {stage.stage}", text
        yield (
            f"{run.dtype}: time",
            f"{run.our_seconds:.1f} s in pgcli, {run.their_seconds:.1f} s in {proof.program}",
        )
    if proof.rows is not None:
        yield "logprob", "not compared: " + LOGPROB
    for reason in proof.skipped:
        yield "not compared", reason
    if proof.not_followed:
        yield "ignored settings", ", ".join(proof.not_followed)
    yield "verdict", proof.verdict


def same_tokens(prompts: PromptComparison) -> str:
    """Whether texts have the same tokens, or why they were not compared."""
    return {
        True: "same tokens",
        False: f"different tokens in transformers: {prompts.first!r}",
        None: f"not compared: {prompts.reason}",
    }[prompts.same]


def pixel_difference(levels: PixelComparison) -> str:
    """The difference of the preprocessed pixels."""
    return (
        f"pixels differ by at most {levels.largest:.2g} of 255 levels, {levels.mean:.2g} on average"
    )


def number_difference(stage: TensorComparison) -> str:
    """The differences of a stage's values, and the bounds."""
    if stage.largest is None or stage.mean is None:
        return "different: some values are not finite"
    text = f"largest difference {stage.largest:.2g}, mean {stage.mean:.2g}"
    allowed = f"{stage.largest_bound:.2g}"
    if stage.mean_bound is not None:
        allowed += f" and {stage.mean_bound:.2g}"
    text += f"; allowed {allowed} for values up to {stage.scale:.3g}"
    if stage.floor is not None:
        text += f"; noise floor {stage.floor.largest:.2g}, mean {stage.floor.mean:.2g}"
    if stage.same:
        return f"same: {text}"
    return f"different: {text}; first at {first_difference(stage)}"


def first_difference(stage: TensorComparison) -> str:
    """The first difference of a stage: `row 0, patch 3, channel 7`."""
    names = ("row", "patch", "channel") if len(stage.first or ()) == 3 else ("row", "token")
    return ", ".join(f"{n} {at}" for n, at in zip(names, stage.first or (), strict=False))


def tokens(stage: TokenComparison) -> str:
    """The number of equal tokens, and the first divergence."""
    rows = stage.rows - len(stage.divergences)
    text = f"{rows} of {stage.rows} rows are equal, {stage.agreeing} of {stage.tokens} tokens"
    if ties := sum(divergence.tie for divergence in stage.divergences):
        text += f"; rows with a tie (logits within {stage.tie_bound:.2g}): {ties}"
    if stage.divergence_floor is not None:
        text += (
            f"; rows that diverge between transformers' own attentions: {stage.divergence_floor}"
        )
    if stage.same:
        return f"same: {text}"
    first = next(divergence for divergence in stage.divergences if not divergence.tie)
    text += f"; first at row {first.row}, step {first.step}: {first.ours}, not {first.theirs}"
    return f"different: {text}" + ("" if first.gap is None else f", by {first.gap:.2g}")


def hint(proof: Proof) -> str:
    """The hint for a difference."""
    if proof.not_followed and {run.first_difference for run in proof.comparisons} <= {
        None,
        "generated tokens",
    }:
        names = ", ".join(setting.partition(" = ")[0] for setting in proof.not_followed)
        return f"the checkpoint's generation_config.json sets {names}, which pgcli ignores"
    if any(run.first_difference for run in proof.comparisons):
        return "please report it, with the output of --json and the name of the model"
    return f"pgcli and {proof.program} tokenize texts differently: please report it"
