"""Kills and stops runs of every kind at random moments.

Each run is the whole command line. The test kills programs, their decoding and engine processes,
the process that engines are forked from, and with Ray the actors, nodes and drivers of a cluster on
this machine. Killed programs start again until all rows are saved. Stopped processes continue after
a while; a second command meets a stopped program. Rows are compared during the run and at its end
with an undisturbed run: a model's answers, tokens and boxes are equal, and numbers made of its
probabilities agree within CLOSE, as they depend on the batch on processors without AVX-512. Files
of the pretended model are equal byte for byte.
"""

import io
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.errors import PgcliError
from pgcli.run.state.folder import FOLDERS, OWN, shard_stores
from pgcli.run.state.record import state_location
from pgcli.run.status import read_status
from pgcli.stores import Store, open_folder
from tests.support import ray_cluster
from tests.support.forkserver import ForkedRun
from tests.support.stores import used_store

IMAGES, BROKEN = 60, 7
OPTIONS = ("--model", "demo", "--quiet", "--no-timing", "--batch-size", "1")
SECONDS_PER_ROW, CHUNK_SECONDS = 0.004, 0.5  # for the pretended model; for four rows of an actor
#: The longest time before a kill. With Ray, as long as an engine's start on a busy machine.
MAX_SECONDS, RAY_SECONDS = 6.0, 12.0
MOMENT, POLL_SECONDS, END_SECONDS = 0.1, 0.01, 300
#: The expiry of the lease in a store, and the pause of a stopped process.
SILENT_SECONDS, STOPPED_SECONDS = 2.0, 3.0
LEASE = {"BEAT_SECONDS": 0.3, "SILENT_SECONDS": SILENT_SECONDS, "WATCH_SECONDS": 0.1}
#: Deaths of a program's processes: rows that kill too many engines become error rows.
MAX_DEATHS = 2
#: Numbers made of probabilities, and how far they may differ.
NUMBERS, CLOSE = ("logprob", "score", "confidence"), 1e-5
#: Exit codes: all rows are saved, one of them failed; another command owns the output; too many
#: processes died.
COMPLETE, IS_ACTIVE, NO_DEVICE = 3, 12, 17


@dataclass(frozen=True)
class Kind:
    """A kind of run: its output and options, and the options of each program that takes part.

    `stops` and `kills` restrict the processes that are stopped or killed; by default it is any.
    """

    output: str
    options: str = "--workers 0"
    programs: tuple[str, ...] = ("",)
    model: str = "pretended"
    stops: str = ""
    kills: str = ""


FOLDER = "--workers 0 --rows-per-file 8"
SHARDS = ("--shard 0/3", "--shard 1/3", "--shard 2/3")
SHARDS_OF_2 = ("--shard 0/2", "--shard 1/2")
ENGINES = "--engines 2 --workers 0"
KINDS = {
    "lines": Kind("rows.jsonl"),
    "lines, decoding processes": Kind("rows.jsonl", "--workers 2"),
    "Parquet": Kind("rows.parquet"),
    "folder": Kind("rows/", FOLDER),
    "shards": Kind("rows/", FOLDER, SHARDS),
    "store": Kind("s3://bucket/{}/", FOLDER),
    "store, shards": Kind("s3://bucket/{}/", FOLDER, SHARDS),
    "engines, lines": Kind("rows.jsonl", ENGINES, model="real"),
    "engines, Parquet": Kind("rows.parquet", ENGINES, model="real"),
    "engines, folder": Kind("rows/", f"{ENGINES} --rows-per-file 8", model="real"),
    "engines, store": Kind("s3://bucket/{}/", f"{ENGINES} --rows-per-file 8", model="real"),
    "engines, shards": Kind("rows/", f"{ENGINES} --rows-per-file 8", SHARDS_OF_2, model="real"),
    "engines, decoding processes": Kind("rows.jsonl", "--engines 2 --workers 1", model="real"),
    "fork server": Kind("rows.jsonl", ENGINES, model="real", kills="fork server"),
    "stopped engines": Kind("rows.jsonl", ENGINES, model="real", stops="engine"),
    "stopped shards": Kind("rows/", FOLDER, SHARDS, stops="program"),
    "store, stopped shards": Kind("s3://bucket/{}/", FOLDER, SHARDS, stops="program"),
    "Ray": Kind("rows/", FOLDER, model="Ray"),
    "Ray, store": Kind("s3://bucket/{}/", FOLDER, model="Ray"),
}


class Programs:
    """The programs of one run, with an output folder beside the images."""

    def __init__(self, kind: Kind, folder: Path, cluster: Any = None):
        self._kind, self._folder, self._cluster = kind, folder, cluster
        self._deaths: Counter[Any] = Counter()  # by program
        self.url = kind.output.format(folder.name)
        if "://" not in self.url:
            self.url = str(folder / self.url) + "/" * kind.output.endswith("/")
        self._running = {self._start(options): options for options in kind.programs}

    def _start(self, options: str) -> ForkedRun | subprocess.Popen[str]:
        words = ["caption", "../photos", "-o", self.url, *OPTIONS]
        words += [*self._kind.options.split(), *options.split()]
        lease = json.dumps(LEASE)
        if self._kind.model == "Ray":
            return ray_cluster.start_run(self._cluster.address, words, self._folder, LEASE=lease)
        return ForkedRun(
            words,
            env=os.environ | {"PRETEND_SECONDS": str(SECONDS_PER_ROW), "LEASE": lease},
            cwd=self._folder,
            stderr=subprocess.PIPE,
            kind="real" if self._kind.model == "real" else "pretended",
        )

    def disturb(self, rng: random.Random) -> str:
        """Kill or stop a program or one of its processes; return which kind, or empty."""
        running = [program for program in self._running if program.poll() is None]
        if not running:
            return ""
        program = rng.choice(running)
        if self._kind.stops:
            return self._stop(program, rng)
        may_die = self._deaths[program] < MAX_DEATHS
        processes = self._processes(program) if may_die else {}
        if self._kind.kills:
            processes = {pid: name for pid, name in processes.items() if name == self._kind.kills}
        if processes and (self._kind.kills or rng.random() < 0.6):
            killed = rng.choice(list(processes))
            with suppress(ProcessLookupError):
                os.kill(killed, signal.SIGKILL)
                self._deaths[program] += 1
                return processes[killed]
            return ""
        if self._kind.kills and may_die:
            return ""
        options = self._running[program]
        program.kill()
        if self._end(program) != -signal.SIGKILL:
            return ""
        self._running[self._start(options)] = options
        return "program"

    def _stop(self, program: ForkedRun | subprocess.Popen[str], rng: random.Random) -> str:
        """Stop a program, which a second one then meets, or one of its processes, for a while."""
        named = {program.pid: "program"} | self._processes(program)
        processes = [pid for pid, name in named.items() if name == self._kind.stops]
        if not processes:
            return ""
        stopped = rng.choice(processes)
        try:
            os.kill(stopped, signal.SIGSTOP)
        except ProcessLookupError:
            return ""
        options = self._running[program]
        if stopped == program.pid and rng.random() < 0.7:
            self._running[self._start(options)] = options
        time.sleep(rng.uniform(0, STOPPED_SECONDS))
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
        return f"stopped {self._kind.stops}"

    def _processes(self, program: ForkedRun | subprocess.Popen[str]) -> dict[int, str]:
        """The processes of a program, each with its kind."""
        if self._kind.model == "Ray":
            actors = filter(psutil.pid_exists, ray_cluster.actors(self._folder))
            return dict.fromkeys(sorted(actors), "actor")
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(program.pid).children(recursive=True)
            return {child.pid: role_of(child, program.pid) for child in children}
        return {}

    def _end(self, program: ForkedRun | subprocess.Popen[str]) -> int:
        """Wait for a program; start it again if it ends before its rows are saved."""
        _, said = program.communicate(timeout=END_SECONDS)
        options, code = self._running.pop(program), program.returncode
        died = NO_DEVICE if self._deaths else COMPLETE
        assert code in (0, COMPLETE, -signal.SIGKILL, IS_ACTIVE, died), (code, said)
        if code in (IS_ACTIVE, NO_DEVICE):
            time.sleep(0.3)
            self._running[self._start(options)] = options
        return code

    def finish(self) -> None:
        """Wait until all programs have ended."""
        while self._running:
            self._end(next(iter(self._running)))

    def repeat(self) -> None:
        """Run the programs again, then one without a shard; they only clean up."""
        for options in dict.fromkeys((*self._kind.programs, "")):
            self._running[self._start(options)] = options
            self.finish()

    @property
    def has_ended(self) -> bool:
        return all(program.poll() is not None for program in self._running)


def role_of(process: psutil.Process, program: int) -> str:
    """The kind of a program's process."""
    words = " ".join(process.cmdline())
    if "multiprocessing.forkserver" in words:
        return "fork server" if process.ppid() == program else "engine"
    if "resource_tracker" in words:
        return "resource tracker"
    return "engine" if "multiprocessing.spawn" in words else "decoding process"


def files_of(output: str) -> dict[str, bytes]:
    """An output's current files, sorted by name."""
    folder, _, name = output.rpartition("/")
    try:
        store = open_folder(f"{folder}/")
    except FileNotFoundError:
        return {}
    names = [name] if name else sorted(entry.name for entry in store.list("part-"))
    files = {name: store.read(name) for name in names}
    return {name: data for name, data in files.items() if data is not None}


def rows_of(output: str) -> list[str]:
    """The current rows without NUMBERS; for JSON lines, only from complete lines."""
    return [json.dumps(without_numbers(row), sort_keys=True) for row in all_rows(output)]


def numbers_of(output: str) -> list[float]:
    """The NUMBERS of all rows of an output, in order."""
    parts = (part for row in all_rows(output) for part in (row, *row["boxes"]))
    return [part[name] for part in parts for name in NUMBERS if part.get(name) is not None]


def without_numbers(row: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in row.items() if name not in NUMBERS}
    return plain | {"boxes": [*map(without_numbers, row["boxes"])]} if "boxes" in row else plain


def all_rows(output: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, data in files_of(output).items():
        if PurePosixPath(name).suffix == ".parquet":
            rows += pq.read_table(io.BytesIO(data)).to_pylist()
        else:
            rows += map(json.loads, data[: data.rfind(b"\n") + 1].splitlines())
    return rows


def contents(output: str) -> dict[str, Any]:
    """The bytes of an output's files, for Parquet without the run's id in the footer."""
    return {name: without_id(name, data) for name, data in files_of(output).items()}


def saved_rows(output: str) -> int:
    """An output's current rows, including open files."""
    with suppress(PgcliError):
        return read_status(output).rows
    return 0


def without_id(name: str, data: bytes) -> Any:
    if not name.endswith(".parquet"):
        return data
    footer = int.from_bytes(data[-8:-4], "little") + 8
    metadata = pq.read_metadata(io.BytesIO(data))
    settings = {key: text for key, text in metadata.metadata.items() if key.startswith(b"pgcli")}
    del settings[b"pgcli.run"]
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    return data[:-footer], metadata.schema.to_arrow_schema().remove_metadata(), settings, groups


def foreign_files(output: str) -> list[str]:
    """Unexpected files in the state folder of a complete output.

    On this machine also temporary files, there and beside the rows.
    """
    state = open_folder(state_location(output))
    found = [name for store in (state, *shard_stores(state)) for name in foreign_names(store)]
    if "://" not in output:
        found += [str(file) for file in Path(output).parent.rglob(".*.part")]
    return found


def foreign_names(store: Store) -> list[str]:
    folders = ("", *(f"{name}/" for name in FOLDERS))
    names = [entry.name for prefix in folders for entry in store.list(prefix)]
    return [name for name in names if not OWN.fullmatch(name) or name.startswith("open/")]


def kill_often(
    kind: str, kills: int, rng: random.Random, folder: Path, cluster: Any = None
) -> Counter[str]:
    """Kill runs of a kind this many times in total, in a new folder, and compare their rows.

    Returns how often each kind of process was killed or stopped, and under `amid rows` how often
    only some rows were saved then.
    """
    done = runs = 0
    counts: Counter[str] = Counter()
    settings, nodes = KINDS[kind], Nodes(cluster)
    make_images(folder / "photos")
    seconds = 0.0  # of the second undisturbed run
    for name in ("first", "second"):
        (folder / name).mkdir()
        began = time.monotonic()
        undisturbed = Programs(settings, folder / name, cluster)
        undisturbed.finish()
        seconds = min(MAX_SECONDS, time.monotonic() - began)
    whole, files = Counter(rows_of(undisturbed.url)), contents(undisturbed.url)
    numbers, is_exact = numbers_of(undisturbed.url), settings.model == "pretended"
    assert whole.total() == IMAGES
    if settings.model == "Ray":
        seconds = RAY_SECONDS
    while done < kills:
        runs += 1
        (folder / f"run{runs}").mkdir()
        run = Programs(settings, folder / f"run{runs}", cluster)
        while done < kills and not run.has_ended:
            wait(run, seconds, rng)
            rows, saved = Counter(rows_of(run.url)), saved_rows(run.url)
            assert rows <= whole, "a file has different rows"
            is_node = rng.random() < 0.25 and nodes.kill(rng)
            if name := "node" if is_node else run.disturb(rng):
                done += 1
                counts[name] += 1
                counts["amid rows"] += 0 < saved < IMAGES
        run.finish()
        assert Counter(rows_of(run.url)) == whole, "rows are lost or saved twice"
        assert numbers_of(run.url) == pytest.approx(numbers, abs=CLOSE)
        assert not is_exact or contents(run.url) == files, "a file has different bytes"
        before = contents(run.url)
        run.repeat()
        assert contents(run.url) == before, "a complete run changes a file"
        foreign = foreign_files(run.url)
        assert not foreign, f"the output is complete, and there are {foreign}"
    nodes.remove()
    return counts


def wait(run: Programs, seconds: float, rng: random.Random) -> None:
    """Wait for a random time; half of the times first until rows are saved."""
    end, before = time.monotonic() + rng.uniform(0, seconds), saved_rows(run.url)
    is_for_rows = rng.random() < 0.5
    while not run.has_ended and (is_for_rows or time.monotonic() < end):
        if is_for_rows and saved_rows(run.url) > before:
            time.sleep(rng.uniform(0, MOMENT))
            return
        time.sleep(POLL_SECONDS)


class Nodes:
    """The two nodes of a cluster; none without one."""

    def __init__(self, cluster: Any):
        self._cluster = cluster
        self._nodes = [ray_cluster.add_node(cluster) for _ in range(2)] if cluster else []

    def kill(self, rng: random.Random) -> bool:
        """Kill a node and start another; return whether there is a cluster."""
        if not self._nodes:
            return False
        node = self._nodes.pop(rng.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(ray_cluster.add_node(self._cluster))
        return True

    def remove(self) -> None:
        for node in self._nodes:
            self._cluster.remove_node(node)


def make_images(folder: Path) -> None:
    folder.mkdir()
    for number in range(IMAGES):
        Image.new("RGB", (8, 8 + number)).save(folder / f"{number:03}.png")
    (folder / f"{BROKEN:03}.png").write_bytes(b"no image")


@contextmanager
def surroundings(kind: str) -> Iterator[Any]:
    """A block with the store or the cluster that a kind of run needs."""
    with ExitStack() as stack:
        if KINDS[kind].model == "Ray":
            os.environ["CHUNK_SECONDS"] = str(CHUNK_SECONDS)
            yield stack.enter_context(ray_cluster.local_cluster())
        else:
            stack.enter_context(used_store())
            yield None
