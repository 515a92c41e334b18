"""The destination of a run: checked before the input is opened."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pgcli.cli.job.plan import Plan, claiming_option
from pgcli.cli.job.run_settings import resume_rules, run_settings
from pgcli.cli.job.side_outputs import check_side_outputs
from pgcli.errors import OutputFailed, UsageError
from pgcli.remote.stored_objects import check_folder_url
from pgcli.remote.urls import has_credentials, without_credentials
from pgcli.sinks import OutputFormat, output_format
from pgcli.sources.paths import url_scheme
from pgcli.state.destination import check_destination, check_resumable

#: Hints for options that need a run alone, where there is another way to what they give.
LATER_VIEW = "once the rows are there, pgcli view rows/ draws them and writes pages"
AFTERWARDS = {
    "--draw": LATER_VIEW,
    "--view": LATER_VIEW,
    "--retry-errors": "one process asks rows with errors again: leave out --join and --ray",
}

DestinationFormat = Literal["stream"] | OutputFormat


@dataclass(frozen=True)
class Destination:
    """The format of the output, and whether an earlier run began it."""

    format: DestinationFormat
    resumes: bool = False

    @property
    def is_resumable(self) -> bool:
        """Whether a later run can resume the output: not standard output, nor text."""
        return self.format not in ("stream", "text")


def check_output(plan: Plan) -> Destination:
    """The destination of the rows, with everything checked that needs neither input nor model.

    Nothing is created. Raises UsageError, OutputInUse, OutputExists and OutputFailed.
    """
    output = plan.options.output
    format: DestinationFormat = "stream"
    if output.output != "-":
        format = output_format(output.output, output.format)
    destination = Destination(format)
    check_url(plan, destination)
    check_shard(plan, destination)
    check_claims(plan, destination)
    check_rows_per_file(plan, destination)
    check_retry(plan, destination)
    path = Path(output.output)
    if destination.is_resumable and not plan.is_stored:
        resumes = check_resumable(
            path,
            run_settings(plan),
            kind="folder" if format == "folder" else "file",
            overwrite=output.overwrite,
            part=plan.part,
            rules=resume_rules(plan),
        )
        destination = Destination(format, resumes)
    elif format == "text":
        check_destination(path, overwrite=output.overwrite)
    elif format == "stream" and sys.stdout is None:
        raise OutputFailed("standard output is closed", hint="name a file: -o rows.jsonl")
    check_side_outputs(plan, resumes=destination.resumes)
    return destination


def check_shard(plan: Plan, destination: Destination) -> None:
    """Raise UsageError for `--shard` without a folder of Parquet files."""
    if plan.shard is not None and (destination.format != "folder" or plan.options.output.overwrite):
        raise UsageError(
            "--shard needs a folder of Parquet files as output, and no --overwrite",
            hint="name it with a slash at its end, -o rows/, and leave --overwrite out",
        )


def check_claims(plan: Plan, destination: Destination) -> None:
    """Raise UsageError for what does not go with `--join` or `--ray`."""
    model, output = plan.options.model, plan.options.output
    if model.ray is None and (model.ray_gpus is not None or model.ray_cpus is not None):
        name = "--ray-gpus" if model.ray_cpus is None else "--ray-cpus"
        raise UsageError(f"{name} needs --ray", hint="name the cluster: --ray auto")
    if not plan.claims_chunks:
        return
    option = claiming_option(plan)
    check_ray(model.ray)
    if plan.shares_chunks and destination.format != "folder":
        raise UsageError(
            f"{option} needs a folder of Parquet files as output",
            hint="name it with a slash at its end: -o rows/",
        )
    if model.join and output.overwrite:
        raise UsageError(
            "--overwrite does not go with --join: each process would remove the rows of the others",
            hint="name another -o, or remove the output and its folder .pgcli first",
        )
    others = {
        "--shard": plan.shares_chunks and plan.options.input.shard,
        "--retry-errors": plan.options.running.retry_errors,
        "--draw": output.draw,
        "--view": output.view,
        "--sidecar": output.sidecar,
        "--inline": output.inline,
    }
    if given := next((name for name, value in others.items() if value), None):
        leave_out = f"leave one of them out: a run without {option} has {given}"
        hint = AFTERWARDS.get(given, leave_out)
        if plan.is_stored and given != "--shard":
            hint = "name a folder of this machine with -o"
        raise UsageError(f"{given} does not go with {option}", hint=hint)


def check_url(plan: Plan, destination: Destination) -> None:
    """Raise UsageError for an address that is not that of a folder in an object store."""
    url = plan.options.output.output
    if url_scheme(url) is None:
        return
    if not plan.is_stored or destination.format != "folder" or has_credentials(url):
        raise UsageError(
            f"rows cannot be written to {without_credentials(url)}",
            hint="name a file, a folder, or a folder in an object store: -o s3://bucket/rows/, "
            "gs:// or az://",
        )
    check_folder_url(url, "-o")
    if plan.options.running.verify_input:
        raise UsageError(
            "--verify-input needs an output of this machine: the inputs of rows in an object store "
            "are not recorded",
            hint="leave it out, or name a folder of this machine with -o",
        )


def check_ray(address: str | None) -> None:
    """Raise UsageError where Ray is asked for and not installed."""
    if address is not None and find_spec("ray") is None:
        raise UsageError(
            "--ray needs Ray, which is not installed", hint="pip install 'paligemma-cli[ray]'"
        )


def check_rows_per_file(plan: Plan, destination: Destination) -> None:
    """Raise UsageError for `--rows-per-file` without a folder of Parquet files."""
    if plan.options.output.rows_per_file is not None and destination.format != "folder":
        raise UsageError(
            "--rows-per-file needs a folder of Parquet files as output",
            hint="name it with a slash at its end, -o rows/",
        )


def check_retry(plan: Plan, destination: Destination) -> None:
    """Raise UsageError for `--retry-errors` without an output that can be resumed."""
    has_limit = plan.options.input.limit is not None
    if plan.options.running.retry_errors and (has_limit or not destination.is_resumable):
        raise UsageError(
            "--retry-errors goes through all rows of an output that can be resumed",
            hint="name the output with the errors, -o rows.jsonl, and leave --limit out",
        )
