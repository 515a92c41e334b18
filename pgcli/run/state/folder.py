"""The state folder of an output: its run, and the files in it that pgcli may remove."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.errors import OutputExists, PgcliError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.output import FOLDER, PART, PART_ENDING, load_format, part_format
from pgcli.output.reader import OPEN, OPEN_FILE
from pgcli.run.events import Interrupted
from pgcli.run.state.owner import LOCK, OWNER, SHARD, Owner
from pgcli.run.state.record import RUN, RunRecord, read_record, state_location, why_no_record
from pgcli.run.state.saved import SavedRows, open_saved
from pgcli.stores import Entry, LocalStore, Store, open_folder
from pgcli.stores.urls import is_in_object_store, without_credentials
from pgcli.stores.writing import already_exists

if TYPE_CHECKING:
    from pgcli.output.lines import LineFormat
    from pgcli.output.tables import TableFormat
    from pgcli.run.request import Shard

INPUTS, RETRIED = "inputs", "retried"
FOLDERS = (INPUTS, OPEN, RETRIED)
#: All names that pgcli writes into a state folder or the folder of a shard in it. It never removes
#: other names.
OWN = re.compile(
    rf"run\.json|lock|owner\.json|inputs/(\d+\.arrow|images)"
    rf"|({OPEN}|{RETRIED})/{OPEN_FILE.pattern}|{RETRIED}/images"
)


class State:
    """The state of an output, on this machine or in a store.

    `record` is the record of the run that began the output, None for a new output. With
    `overwrite`, it is `replaced` when the first row is saved.
    """

    record: RunRecord | None = None
    replaced: RunRecord | None = None

    def __init__(self, output: str, *, overwrite: bool, shard: Shard | None = None):
        self.output, self.overwrite, self.shard = output, overwrite, shard
        self.name = without_credentials(output)
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The folder, created on first use."""
        if self._store is None:
            self._store = open_folder(state_location(self.output), create=True)
        return self._store

    @cached_property
    def owner(self) -> Owner:
        """This command as the owner of the output or of its shard."""
        return Owner(self.store, self.name, shard="" if self.shard is None else str(self.shard))

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder of files."""
        return self.output.endswith(FOLDER)

    @property
    def format(self) -> LineFormat | TableFormat:
        """The format of the output's files."""
        return part_format() if self.is_folder else load_format(self.output)

    @property
    def is_stored(self) -> bool:
        """Whether the output is in an object store."""
        return is_in_object_store(self.output)

    def check(self) -> None:
        """Raise OutputExists or OutputFailed for an output or state of another program.

        With `overwrite`, a file is replaced whoever wrote it. Nothing is created.
        """
        if self._find_record():
            return
        names = list(self._output_names())
        if self._find_record():  # of a run that just began: the record comes before any row
            return
        if self._store is not None and self.replaced is None:
            self._check_state(self._store)
        if self.is_folder:
            self._check_names(names)
        elif names and not self.overwrite:
            why = f" and cannot be resumed: there is no {state_location(self.output)}/{RUN}"
            raise already_exists(self.name, why)

    def _find_record(self) -> bool:
        """Read the record, and return whether there is a run to resume."""
        with suppress(FileNotFoundError):
            self._store = self._store or open_folder(state_location(self.output))
        record = None if self._store is None else read_record(self._store)
        self.record, self.replaced = (None, record) if self.overwrite else (record, None)
        return self.record is not None

    def _output_names(self) -> Iterator[str]:
        """The files in an output folder, or the output file."""
        if self.is_folder:
            with suppress(FileNotFoundError):
                yield from (entry.name for entry in open_folder(self.output, follow=True).list())
        elif os.path.lexists(self.output):
            yield self.output

    def _check_state(self, store: Store) -> None:
        names = store.names() if isinstance(store, LocalStore) else (e.name for e in store.list())
        # before `run.json`, pgcli writes only these
        others = (
            name
            for name in names
            if name not in (LOCK, OWNER) and not SHARD.fullmatch(name) and not name.startswith(".")
        )
        if (foreign := next(others, None)) is not None and read_record(store) is None:
            raise OutputExists(
                f"{self.name} cannot be resumed or replaced: {why_no_record(store)}, but {foreign}",
                hint=f"move {store.url} away, or choose another <-o>",
            )

    def _check_names(self, names: Sequence[str]) -> None:
        if self.replaced is None and names:
            raise OutputExists(
                f"{self.name} is not empty, and there is no record of a run that wrote it",
                hint="move its files away, or choose another <-o>",
            )
        foreign = [
            name for name in names if not PART.fullmatch(name) and name.endswith(PART_ENDING)
        ]
        if foreign:
            raise OutputExists(
                f"{self.name} has files that no run wrote: {foreign[0]}",
                hint="readers would take them for rows; move them away, or choose another <-o>",
            )
        if self.replaced is not None and names:
            self.rows_of(self.replaced).find()

    def rows_of(self, record: RunRecord) -> SavedRows:
        """The rows of a run with this record."""
        return open_saved(self.output, lambda: record, [self.store])

    @contextmanager
    def owned(self, say: Callable[[str], object]) -> Iterator[None]:
        """A block in which this command may write the output. Raises OutputInUse.

        If the command begins no run in it, its state is removed, unless a signal ended it: then
        `pgcli status` says that rows are missing.
        """
        with self.owner.holding(say=say):
            self._find_record()  # another run may have begun since the check
            self._remove_abandoned()
            is_interrupted = False
            try:
                yield
            except Interrupted:
                is_interrupted = True
                raise
            finally:
                is_new = self.record is None and self.replaced is None and not self.shard
                if is_new and not is_interrupted:
                    with suppress(PgcliError):
                        self._discard()

    def _remove_abandoned(self) -> None:
        """Remove temporary files of killed commands, where only this command writes.

        Only a command without --shard removes them in the folder that shards share.
        """
        if not isinstance(self.store, LocalStore):
            return
        own = self.owner.store
        for store in [own] if self.shard else [own, *shard_stores(own)]:
            assert isinstance(store, LocalStore)
            for folder in ("", *FOLDERS):
                store.remove_abandoned(folder)
        output = Path(self.output)
        if not self.is_folder:
            LocalStore(output.parent, follow=True).remove_abandoned(is_own=output.name.__eq__)
        elif output.is_dir():
            LocalStore(output, follow=True).remove_abandoned(is_own=self._is_own_part)

    def _is_own_part(self, name: str) -> bool:
        """Whether this command alone writes the file of this name."""
        match = PART.fullmatch(name)
        return match is not None and (self.shard is None or self.shard.has(int(match[1])))

    def begin(self, record: RunRecord) -> RunRecord:
        """Write the record of a new run, and return it, or the record of the first shard.

        A replaced output is removed first: if the process is killed in between, no rows remain that
        could belong to other settings.
        """
        if self.replaced is not None or self.overwrite:
            self.rows_of(self.replaced or record).remove()
            keep = (RUN, LOCK, OWNER)  # without the record, pgcli would own no file
            names = [entry.name for entry in own_entries(self.store)]
            self.store.delete(name for name in names if name not in keep)
            for shard in shard_stores(self.store):
                shard.delete([entry.name for entry in own_entries(shard)])
                if isinstance(shard, LocalStore):
                    shard.remove_folders()
        if self.replaced is not None:
            self.store.replace(RUN, record.to_bytes())
        elif not self.store.create(RUN, record.to_bytes()):
            first = read_record(self.store)
            if first is None:
                raise OutputExists(
                    f"{self.name} cannot be resumed: {why_no_record(self.store)}",
                    hint="move it away, or choose another <-o>",
                )
            record = first
        self.record = record
        return record

    def update(self, record: RunRecord) -> None:
        """Replace the record."""
        self.record = record
        self.store.replace(RUN, record.to_bytes())

    def _discard(self) -> None:
        """Remove the state of a command that began no run."""
        self.owner.restore()
        self.store.delete([entry.name for entry in own_entries(self.store)])
        if isinstance(self.store, LocalStore):
            self.store.remove_folders()


def own_entries(store: Store) -> Iterator[Entry]:
    """The files of pgcli in a state folder or in the folder of a shard."""
    for prefix in ("", *(f"{folder}/" for folder in FOLDERS)):
        for entry in store.list(prefix):
            if OWN.fullmatch(entry.name):
                yield entry


def shard_stores(store: Store) -> list[Store]:
    """The folders of shards in a state folder."""
    names = filter(SHARD.fullmatch, store.folders())
    return [open_folder(f"{store.url.rstrip('/')}/{name}/") for name in names]


def load_inventory(store: Store, sources: Sequence[str], options: ReadOptions) -> Inventory | None:
    """The input recorded by earlier commands, a file for each generation; None without a file."""
    files: list[bytes] = []
    while (data := store.read(inventory_name(len(files)))) is not None:
        files.append(data)
    return Inventory.load(files, sources, options) if files else None


def inventory_name(generation: int) -> str:
    """The name of the file with a generation of the input."""
    return f"{INPUTS}/{generation}.arrow"
