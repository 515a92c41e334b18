"""Prompts that are added to the run of an output: its rows are written anew, then it is replaced.

`OUTPUT.pgcli/adding/` holds the new output and its state, as of any other run. Once every earlier
row is in it, it is renamed to `added/`, and the output is replaced. Then the earlier state is
removed, `added/` is renamed to `placing/`, and its state is moved in place of the earlier one. The
next run finishes what a killed process began.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from pgcli.errors import OutputExists
from pgcli.state.lock import output_lock
from pgcli.state.run_record import (
    PROMPTS,
    ResumeRules,
    RunRecord,
    Settings,
    differences,
    read_record,
)
from pgcli.state.state_folder import LOCK, LOG, OWNER, RUN, state_folder
from pgcli.state.write_errors import fsync, wrap_write_errors

ADDING, ADDED, PLACING = "adding", "added", "placing"
#: Files of the state that stay: those of the lock, which is held, and the log of all runs.
KEPT = (LOCK, OWNER, LOG)


def new_output(output: Path, stage: str = ADDING) -> Path:
    """The output with the added prompts, until it replaces the other."""
    return state_folder(output) / stage / (output.name or "rows")


def find_record(output: Path, settings: Settings, rules: ResumeRules) -> RunRecord | None:
    """The record of the run that one of these settings resumes or adds prompts to.

    None if there is no run. Raises OutputExists if it is one of other settings.
    """
    record = read_record(output)
    for stage in (ADDED, PLACING):  # of a process that was killed while it replaced the output
        record = read_record(new_output(output, stage)) or record
    if record is None:
        return None
    record = record.with_defaults(rules)
    adding = read_record(new_output(output))
    if adding is not None:
        check_added(output, adding.with_defaults(rules), settings)
        adding.with_defaults(rules).check_settings(settings, output, rules)
    elif record.is_extended_by(settings):
        record.extended(settings).check_settings(settings, output, rules)
    else:
        record.check_settings(settings, output, rules)
    return record


def check_added(output: Path, adding: RunRecord, settings: Settings) -> None:
    """Raise OutputExists for a run of other prompts than those that are being added."""
    if changes := differences(adding.settings, {PROMPTS: settings.get(PROMPTS)}):
        folder = shlex.quote(str(new_output(output).parent))
        raise OutputExists(
            f"prompts are being added to {output}: {'; '.join(changes)}",
            hint="the command that adds them resumes it; another -o leaves it alone; "
            f"rm -r {folder} gives the new rows up",
        )


def finish_replacement(output: Path) -> None:
    """Finish the replacement of the output that a killed process began, if there is one.

    Raises OutputInUse and OutputFailed.
    """
    folder = state_folder(output)
    if any((folder / stage).is_dir() for stage in (ADDED, PLACING)):
        with output_lock(folder), wrap_write_errors(output):
            finish(output)


def finish(output: Path) -> None:
    """Move the new output and its state in place of the earlier ones. Raises OSError."""
    folder = state_folder(output)
    added, placing = folder / ADDED, folder / PLACING
    if added.is_dir():
        place_output(new_output(output, ADDED), output)
        for one in folder.iterdir():
            if one != added and one.name != RUN and not one.name.startswith(KEPT):
                remove(one)
        fsync(folder)
        added.rename(placing)
        fsync(folder)
    if placing.is_dir():
        new_state = state_folder(new_output(output, PLACING))
        for one in sorted(new_state.iterdir(), key=lambda one: one.name == RUN):  # the record last
            if not one.name.startswith(KEPT):
                one.rename(folder / one.name)
        fsync(folder)
        shutil.rmtree(placing)


def place_output(new: Path, output: Path) -> None:
    """Give the new file or folder the name of the output, if it has not got it yet.

    A folder is renamed to be beside the new one first, and back if that fails. Raises OSError.
    """
    old, target = new.with_name(".old"), Path(os.path.abspath(output))  # noqa: PTH100 - keeps links
    if new.is_file():
        new.replace(target)
    elif new.is_dir():
        if os.path.lexists(target) and not os.path.lexists(old):
            target.rename(old)
        try:
            new.rename(target)
        except OSError:
            if os.path.lexists(old):
                old.rename(target)
            raise
    fsync(target.parent)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
