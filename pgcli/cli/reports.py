"""The reports of info, doctor, verify, bench and eval, for a terminal or a pipe."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from pgcli.cli.console import (
    Screen,
    draws_tables,
    print_cells,
    print_facts,
    print_json,
    print_line,
    print_tables,
)
from pgcli.evaluation.evaluate import Evaluation, as_json
from pgcli.evaluation.measures import Estimate
from pgcli.run.events import Facts
from pgcli.run.progress import rate
from pgcli.text import byte_count, count, duration, listed, printable

if TYPE_CHECKING:
    from pgcli.bench.report import BenchReport, ProgramComparison
    from pgcli.bench.roofline import Stages
    from pgcli.doctor.checks import Finding
    from pgcli.verify.compare import (
        TensorComparison,
        TokenComparison,
    )
    from pgcli.verify.verify import Proof


FAMILIES = {"siglip": "SigLIP", "clip": "CLIP", "vit": "ViT", "mean": "vision tower alone"}
COLOURS = {"ok": "green", "warn": "yellow", "bad": "bold red"}
Rows = Sequence[tuple[str, ...]]

SPEEDS = [*"measured rows program start images/s range busy ratio agreement".split()]
STAGES = ("program", "vision ms", "prefill ms", "decode ms", "share of limit")
WORDS = {"measured", "program"}  # columns of text, which is aligned to the left
#: Why `logprob` may differ from another program's on the same logits.
LOGPROB = (
    "pgcli's softmax leaves out padded rows of the vocabulary and the image token, which are "
    "never answered, so it may be slightly higher"
)


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
            rows += [("labels", f"{len(value):,}: {listed(value)}")] if value else []
        elif value is not None:
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            rows.append((name.replace("_", " "), shown))
    return rows


def architecture_rows(values: Mapping[str, Any]) -> Facts:
    """One row for each tower, with the sizes that distinguish checkpoints."""
    if "decoder" not in values:
        sizes = "width {width}, {depth} layers, mlp {mlp_dim}, {num_heads} heads, {activation}"
        towers = [(name, values[name]) for name in ("vision", "text")]
        return [
            ("family", FAMILIES[values["family"]]),
            *((name, sizes.format_map(tower)) for name, tower in towers if tower is not None),
        ]
    generations = {1: "PaliGemma (Gemma)", 2: "PaliGemma 2 (Gemma 2)", 3: "Gemma 3"}
    generation = generations[values["generation"]]
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


def show_findings(findings: list[Finding], *, as_json: bool) -> None:
    """Print the findings as one JSON object, as a table, or as lines of cells in a pipe."""
    if as_json:
        checks = [asdict(finding) for finding in findings]
        states = {finding.state for finding in findings}
        worst = "bad" if "bad" in states else "warn" if "warn" in states else "ok"
        print_json({"state": worst, "checks": checks})
    elif draws_tables():
        problems = sum(finding.state != "ok" for finding in findings)
        hint = "; the line below each one shows how to fix it" if problems else ""
        print_tables(findings_table(findings), f"{count(problems, 'problem')}{hint}")
    else:
        for f in findings:
            print_cells((f.state, f.name, f.description, f.remedy))


def findings_table(findings: list[Finding]) -> Table:
    """State, name and finding, one line each; below a problem, how to fix it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for f in findings:
        colour = COLOURS[f.state]
        grid.add_row(Text(f.state, colour), Text(printable(f.name)), Text(printable(f.description)))
        if f.state != "ok":
            grid.add_row("", "", Text(f"→ {printable(f.remedy)}", "bold"))
    return grid


def verify_facts(proof: Proof) -> Iterator[tuple[str, str]]:
    """The proof as names and values, the verdict last."""
    from pgcli.verify.compare import TokenComparison

    yield "device", proof.device
    images = count(proof.images, "image")
    inputs = images if proof.rows is None else f"{proof.rows} on {images}"
    name, texts = ("images", "texts") if proof.rows is None else ("rows", "prompts")
    yield name, f"{inputs}: pgcli in one batch, {proof.program} one by one"
    if proof.texts is not None:
        outcomes = {
            True: "same tokens",
            False: f"different tokens in transformers: {proof.texts.first!r}",
            None: f"not compared: {proof.texts.reason}",
        }
        yield texts, outcomes[proof.texts.same]
    if (levels := proof.levels) is not None:
        differ = f"pixels differ by at most {levels.largest:.2g} of 255 levels"
        yield "preprocessing", f"{differ}, {levels.mean:.2g} on average"
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
    yield "verdict", proof.verdict


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
    names = ("row", "patch", "channel") if len(stage.first or ()) == 3 else ("row", "token")
    first = ", ".join(f"{n} {at}" for n, at in zip(names, stage.first or (), strict=False))
    return f"different: {text}; first at {first}"


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


def verify_hint(proof: Proof) -> str:
    """The hint for a difference."""
    if any(run.first_difference for run in proof.comparisons):
        return "please report it, with the output of --json and the name of the model"
    return f"pgcli and {proof.program} tokenize texts differently: please report it"


def show_benchmark(report: BenchReport) -> None:
    """Print tables on a terminal, or lines of cells separated by tabs in a pipe."""
    speeds = [
        *comparison_rows("files to rows", report.files),
        *comparison_rows("model", report.model),
    ]
    rows_of_stages = [
        (
            program.name,
            *milliseconds(program.seconds, report.model.rows),
            f"{share_text(program.share)}: "
            + ", ".join(f"{100 * part:.0f}" for part in astuple(program.shares)),
        )
        for program in report.stages
    ]
    rows_of_stages.append(("limit", *milliseconds(report.limit, report.model.rows), ""))
    for heads, rows in ((SPEEDS, speeds), (STAGES, rows_of_stages)):
        if draws_tables():
            table = Table(box=None, padding=(0, 2, 0, 0))
            for head in heads:
                table.add_column(head, justify="left" if head in WORDS else "right", no_wrap=True)
            for row in rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            print_tables(table, "")
        else:
            for cells in (heads, *rows):
                print_cells(cells)
            print_line("")
    print_facts(bench_facts(report))


def comparison_rows(measured: str, comparison: ProgramComparison) -> Iterator[tuple[str, ...]]:
    """A row for each program, this one first: start, speed, busy, ratio and agreement of tokens."""
    ratios = [("", "")]
    for ratio, agreed in zip(comparison.ratios, comparison.agreements, strict=True):
        times = f"{ratio.times:.2f} ({ratio.lowest:.2f} to {ratio.highest:.2f})"
        ratios.append((times, f"{share_text(agreed.share)} of {agreed.tokens} tokens"))
    for speed, cells in zip(comparison.speeds, ratios, strict=True):
        spread = f"{rate(speed.slowest)} to {rate(speed.fastest)}"
        rows = str(comparison.rows)
        start = duration(speed.start_seconds) if speed.start_seconds else ""
        pace, busy = rate(speed.rows_per_second), f"{speed.busy:.0%}" if speed.busy < 1 else ""
        yield (measured, rows, speed.name, start, pace, spread, busy, *cells)


def milliseconds(seconds: Stages, rows: int) -> tuple[str, ...]:
    """The milliseconds of one row by stage."""
    return tuple(f"{1000 * stage / rows:.3g}" for stage in astuple(seconds))


def bench_facts(report: BenchReport) -> Facts:
    """How and on what machine the tables were measured."""
    machine, peak = report.machine, report.machine.peak
    files, model = (len(part.speeds[0].seconds) for part in (report.files, report.model))
    attention = ", ".join(f"{kind} in {tower}" for tower, kind in report.attention.items())
    facts = [
        ("answers", f"{report.answers}; batches of {report.batch_size}"),
        ("device", f"{machine.device}, {machine.threads} threads, {report.dtype}"),
        (
            "limit",
            f"{peak.flops_per_second / 1e9:,.0f} GFLOP/s, {peak.bytes_per_second / 1e9:.1f} GB/s, "
            "the highest measured",
        ),
        ("transformers", f"{report.transformers}; attention: {attention}"),
        (
            "rounds",
            f"{files} of files, {model} of the model, alternating; medians, and ranges of all",
        ),
    ]
    if any(max(astuple(program.shares)) > 1 for program in report.stages):
        facts.append(
            ("warning", "shares above 100 %: this machine was busier when its rates were measured")
        )
    return facts


def share_text(part: float) -> str:
    """A share in percent; only a full share is 100 %."""
    return "100 %" if part == 1 else f"{100 * part:.1f} %" if part < 0.999 or part > 1 else "99.9 %"


def print_as_json(evaluations: Sequence[Evaluation], differences: Mapping[str, Estimate]) -> None:
    """Print one object: the evaluation, or two evaluations and their differences."""
    if len(evaluations) == 1:
        print_json(evaluations[0].as_json())
        return
    files = [{"file": file.joined.name, **file.as_json()} for file in evaluations]
    changes = {name: as_json(change) for name, change in differences.items()}
    print_json({"files": files, "differences": changes})


def print_as_text(
    evaluations: Sequence[Evaluation], differences: Mapping[str, Estimate], column: str | None
) -> None:
    """Print a line for each metric, with its interval and its number of rows."""
    for evaluation in evaluations:
        if len(evaluations) > 1:
            print_line(f"{evaluation.joined.name}:")
        print_table(evaluation.metrics)
        for value, group in evaluation.groups.items():
            print_line(f"{column} {value}:")
            print_table(group.metrics)
    if differences:
        first, second = (evaluation.joined.name for evaluation in evaluations)
        print_line(f"{second} minus {first}:")
        print_table(differences, sign="+")


def print_table(metrics: Mapping[str, Estimate], sign: str = "") -> None:
    """Print the metrics as lines of aligned cells; one without a value has a dash."""
    width = max(map(len, metrics), default=0)
    for name, estimate in metrics.items():
        value = "-"
        if not math.isnan(estimate.value):
            bounds = f"{estimate.low:{sign}.4f} to {estimate.high:{sign}.4f}"
            value = f"{estimate.value:{sign}.4f}  ({bounds})  {count(estimate.rows, 'row')}"
        print_line(f"  {name:{width}}  {value}")


def report_rows(evaluation: Evaluation, screen: Screen, *, only_common: bool) -> None:
    """Report missing, surplus and failed rows."""
    joined = evaluation.joined
    errors = sum((row.row or {}).get("error") is not None for row in joined.rows)
    counts = f"{joined.missing:,} missing, {joined.surplus:,} surplus, {errors:,} with errors"
    is_complete = not joined.missing and not joined.surplus
    hint = "" if is_complete or only_common else "--only-common ignores them"
    fate = "ignored" if only_common else "counted as wrong"
    note = "" if is_complete else f"; missing and surplus rows are {fate}"
    screen.info(f"{shlex.quote(joined.name)}: rows {counts}{note}", hint=hint)
    if "cider" in evaluation.metrics and len({row.image for row in joined.rows}) == 1:
        screen.info("CIDEr needs more than one image; of a single one it is 0")
