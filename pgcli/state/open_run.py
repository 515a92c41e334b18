"""Opens the state of the run that writes an output, or that writes it anew to add prompts to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgcli.errors import UsageError
from pgcli.state.added_prompts import ADDED, ADDING, finish, finish_replacement, new_output
from pgcli.state.atomic_file import temporary_path
from pgcli.state.destination import unknown_output
from pgcli.state.lock import output_lock
from pgcli.state.run_log import RunLog
from pgcli.state.run_record import ResumeRules, RunRecord, Settings, read_record
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import LOG, state_folder
from pgcli.state.write_errors import fsync, wrap_write_errors


@contextmanager
def open_run(
    output: Path,
    settings: Settings,
    *,
    overwrite: bool = False,
    keep_old: bool = False,
    part: str = "",
    rules: ResumeRules,
) -> Iterator[RunState]:
    """The state of the run that writes the output; or that writes it anew, to add prompts to it.

    Raises what entering RunState raises, and UsageError for prompts that are added by a shard.
    """
    if not overwrite:
        finish_replacement(output)
        if is_extended(output, settings):
            if part:
                raise UsageError(
                    f"the prompts would be added to {output} by one shard only",
                    hint="leave out --shard: one process adds them",
                )
            with output_lock(state_folder(output)):
                yield from add_prompts(output, settings, rules)
            return
    with RunState(output, overwrite=overwrite, keep_old=keep_old, part=part, rules=rules) as state:
        yield state


def is_extended(output: Path, settings: Settings) -> bool:
    """Whether a run of these settings adds prompts to the output, or goes on adding them."""
    record = read_record(output)
    if record is None:
        return False
    return read_record(new_output(output)) is not None or record.is_extended_by(settings)


def add_prompts(output: Path, settings: Settings, rules: ResumeRules) -> Iterator[RunState]:
    """The state of the run that writes the locked output anew."""
    earlier = read_record(output)
    if earlier is None:
        raise unknown_output(output)
    earlier = earlier.with_defaults(rules)
    if read_record(new_output(output)) is None:
        begin(output, earlier, settings)
    state = RunState(new_output(output), rules=rules)
    state.extends = output, earlier
    state.log = RunLog(state_folder(output) / f"{LOG}.txt")
    with state:
        yield state


def begin(output: Path, earlier: RunRecord, settings: Settings) -> None:
    """Write the record of the new run, with the earlier lists of input files."""
    folder = new_output(output).parent
    temporary = temporary_path(folder)
    with wrap_write_errors(folder):
        for left in folder.parent.glob(f".{ADDING}.*"):  # by a process that was killed
            shutil.rmtree(left)
        new_state = state_folder(temporary / new_output(output).name)
        new_state.mkdir(parents=True)
        for file in state_folder(output).glob(f"{earlier.files}-*"):
            shutil.copyfile(file, new_state / file.name)
            fsync(new_state / file.name)
        earlier.extended(settings).write(new_state, replace=True)
        shutil.rmtree(folder, ignore_errors=True)  # without a record
        temporary.rename(folder)
        fsync(folder.parent)


def replace_output(state: RunState) -> None:
    """Replace the output by the new one, which has all of its rows. The state is that of the
    output from now on. Raises OutputFailed."""
    assert state.extends is not None
    output, _ = state.extends
    folder = state_folder(output)
    with wrap_write_errors(output):
        (folder / ADDING).rename(folder / ADDED)
        fsync(folder)
        finish(output)
    state.output, state.folder, state.extends = output, folder, None
