"""slurm: a batch script that shares a run among the tasks of a SLURM job array."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated

import typer

from pgcli.cli.options import number_option, option
from pgcli.cli.typer_app import command
from pgcli.cli.ui import stdout
from pgcli.errors import UsageError

#: The options by which a run is shared in other ways.
OTHERS = ("shard", "join", "ray")


@command(
    "slurm",
    "COMMAND follows the options of slurm and names an output folder that all machines see. Each "
    "task computes its shard; a task that is requeued goes on.",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
    epilog="$ pgcli slurm --tasks 8 caption photos -o rows/",
)
def slurm(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", hidden=True)],
    tasks: Annotated[
        int, number_option("Running", "--tasks", least=1, most=100_000, help="Tasks of the array.")
    ] = 8,
    gpus: Annotated[
        int, number_option("Running", "--gpus", least=0, help="GPUs for each task, each an engine.")
    ] = 1,
    cpus: Annotated[
        int, number_option("Running", "--cpus", least=1, help="Cores for each task.")
    ] = 8,
    time: Annotated[
        str, option("Running", "--time", metavar="TIME", help="Limit of time for each task.")
    ] = "24:00:00",
    partition: Annotated[
        str | None, option("Running", "--partition", metavar="NAME", help="SLURM's partition.")
    ] = None,
) -> None:
    check_command(context, command)
    settings = {
        "job-name": "pgcli",
        "array": f"0-{tasks - 1}",
        "cpus-per-task": str(cpus),
        "time": time,
        "output": "pgcli-%A-%a.log",
        "open-mode": "append",
    }
    if gpus:
        settings["gres"] = f"gpu:{gpus}"
    if partition is not None:
        settings["partition"] = partition
    for name, value in settings.items():
        if not value.isprintable() or " " in value:
            raise UsageError(
                f"--{name} {value!r} cannot be a setting of SLURM",
                hint="leave out blanks and control characters",
            )
    lines = batch_script(settings, command, os.getcwd())  # noqa: PTH109
    if not all(map(str.isprintable, lines)):
        raise UsageError("the names have control characters", hint="a script cannot have them")
    for line in lines:
        stdout.print_line(line)


def batch_script(settings: dict[str, str], command: list[str], folder: str) -> list[str]:
    """The lines of a script that runs a shard of the command in the folder."""
    # before the names, as what follows `--` is one
    words = [command[0], "--shard", "auto", *command[1:]]
    program = shlex.join([sys.executable, "-P", "-m", "pgcli", *words])
    return [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in settings.items()),
        "#SBATCH --requeue",
        f"cd {shlex.quote(folder)} || exit 1",
        f"exec {program}",
    ]


def check_command(context: typer.Context, command: list[str]) -> None:
    """Raise for a command line that is invalid, or whose output shards cannot share."""
    assert context.parent is not None
    commands = context.parent.command.commands  # type: ignore[attr-defined]
    found = commands.get(command[0])
    names = {param.name for param in found.params} if found else set()
    if found is None or not {"output", "shard"} <= names:
        raise UsageError(
            f"{command[0]!r} is not a command whose rows shards can compute",
            hint="name one, such as caption, after the options of slurm",
        )
    given = found.make_context(command[0], list(command[1:]), parent=context.parent).params
    if not str(given["output"]).endswith("/"):
        raise UsageError(
            "the tasks need a folder of Parquet files as output",
            hint="name it with a slash at its end: -o rows/",
        )
    if other := next((name for name in OTHERS if given.get(name)), None):
        raise UsageError(f"--{other} does not go with slurm", hint="leave it out")
    if given.get("overwrite"):
        raise UsageError(
            "--overwrite does not go with slurm: each task would remove the rows of the others",
            hint="name another -o, or remove the output and its folder .pgcli first",
        )
    if "-" in (given.get("sources") or ()):
        raise UsageError(
            "the tasks have no standard input to share",
            hint="name files, folders or a list of images in place of -",
        )
