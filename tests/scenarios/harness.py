r"""Whole commands as golden scenarios: one text file each, run from outside.

A scenario is a file of lines:

    # The subject, in one sentence
    # fault: the recorded behaviour is wrong, and why
    in: photos bad                         inputs of inputs.py, made in an empty folder
    show: id answer error                  the columns that are recorded of rows; all without it
    env: PGCLI_LIMIT=1                     a variable of the commands; may be repeated
    vary: largest batch\t\d+ => largest batch\t#     one more pattern of what varies
    serve: photos                          a server with these inputs, removed from the folder:
                                           $SERVER/bucket/photos and s3://bucket/photos
    slow                                   marked so; it takes over two seconds
    needs: ray                             skipped without this module; `lacks: ray` with it
    given rows.csv:                        a text file
    | image,id
    $ cp photos/one.png other.png          a line without `pgcli`, or that begins with `: `, only
                                           prepares: it has to succeed
    $ pgcli caption photos | head -n 1     bash with pipefail; what follows is recorded
    exit 0
    stdout:
    | ...
    stderr:
    | ...
    file rows.jsonl:                       each created or changed file; files in
    | ...                                  OUTPUT.pgcli/ is not recorded
    gone old.jsonl                         each file that it removed

Commands are forks of a process that has imported the program (forkserver). `real pgcli ...` is a
process of its own, and so is `signalled INT 2 rows.jsonl pgcli ...`, which sends it a signal once a
file has two lines (signalled.py).

What varies is replaced: in all texts the paths and addresses of the scenario and its `vary:`
patterns, in messages and plain text also PATTERNS. The numbers of timing columns are "#"
(shown.VARYING). Progress (text that ends in a carriage return) is skipped. Floats are recorded
with three digits and compared with a tolerance; all else is compared as text.
`python -m tests.scenarios.record NAME...` writes files again.
"""

import contextlib
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

from tests.scenarios import inputs
from tests.scenarios.shown import Shown
from tests.support import forkserver
from tests.support.stores import environment as store_environment
from tests.support.stores import serve_writable

FOLDER = Path(__file__).parent
SECONDS = 200  # after which a command counts as hanging
TOLERANCE = 0.02  # of floats; times the number where it is below 1
FLOAT = re.compile(r"(?<!\w)-?\d+(?:\.\d+)?e-?\d+(?!\w)|(?<!\w)-?\d+\.\d+(?!\w)")

#: Varying parts of messages and plain text, and their recorded replacement.
PATTERNS = (
    (r"(?<![\w.])\d[\d,.]*(?= (?:images|rows|tokens|texts|steps)/s)", "#"),  # rates
    (r"(?<![\w.])\d[\d,.]* (?:ms|s|min|h)\b", "# s"),  # times
    (r"(?<![\w.])\d[\d,.]* [kMGT]i?B\b", "# kB"),  # memory, and pages that grow with the program
    (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "DATE"),
    (r"(?<=process )\d+", "#"),
    (r"(?<=pgcli )\d+\.\d+\.\d+|(?<=transformers )\d+\.\d+\.\d+", "VERSION"),
)


@dataclass
class Step:
    """A command with the comments above it, and the text that follows it."""

    command: str
    above: list[str] = field(default_factory=list)
    outcome: list[str] = field(default_factory=list)


@dataclass
class Scenario:
    """A file as it is written."""

    head: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def slow(self) -> bool:
        return "slow" in self.head

    def values(self, key: str) -> list[str]:
        """The texts of the head's lines `key: text`."""
        return [
            line.partition(": ")[2].strip() for line in self.head if line.startswith(f"{key}: ")
        ]

    def skip(self) -> str:
        """Why the scenario cannot run here; empty if it can."""
        reasons = [
            f"{name} is not installed" for name in self.words("needs") if not find_spec(name)
        ]
        reasons += [f"{name} is installed" for name in self.words("lacks") if find_spec(name)]
        return ", ".join(reasons)

    def words(self, key: str) -> list[str]:
        return " ".join(self.values(key)).split()

    def given(self) -> dict[str, str]:
        """The text files of the head, by name."""
        files: dict[str, str] = {}
        for line in self.head:
            if line.startswith("given "):
                name = line.removeprefix("given ").removesuffix(":")
                files[name] = ""
            elif line.startswith("| "):
                files[name] += line[2:] + "\n"
        return files

    def text(self) -> str:
        lines = list(self.head)
        for step in self.steps:
            lines += [*step.above, f"$ {step.command}", *step.outcome]
        return "\n".join(lines) + "\n"


def parse(text: str) -> Scenario:
    scenario, above = Scenario(), []
    for line in text.splitlines():
        if line.startswith("$ "):
            scenario.steps.append(Step(line[2:], above))
            above = []
        elif not scenario.steps:
            scenario.head.append(line)
        elif line.startswith("#"):
            above.append(line)
        else:
            scenario.steps[-1].outcome.append(line)
    return scenario


def scenario_files() -> list[Path]:
    return sorted(FOLDER.glob("*/*.txt"))


def played(scenario: Scenario, folder: Path) -> Scenario:
    """The scenario with the outcomes of its commands now, run in the folder."""
    stage = Stage(scenario, folder)
    with stage.opened():
        steps = [
            Step(step.command, step.above, stage.outcome(step.command)) for step in scenario.steps
        ]
    return Scenario(scenario.head, steps)


class Stage:
    """A scenario's folders, environment and server."""

    def __init__(self, scenario: Scenario, folder: Path):
        self.scenario = scenario
        self.work, self.home, self.programs = (folder / name for name in ("work", "home", "bin"))
        for made in (self.work, self.home, self.programs, folder / "tmp"):
            made.mkdir(parents=True)
        self.shown = Shown(scenario.words("show"), value=self.renamed, line=self.normalised)
        self.texts = {str(self.work): "$PWD", str(folder): "$FOLDER", str(forkserver.ROOT): "$ROOT"}
        self.objects: dict[str, bytes] = {}
        self.environment = base_environment() | {
            **forkserver.install(self.programs),
            "PATH": f"{self.programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(folder / "tmp"),
        }
        for kind in ("CONFIG", "CACHE", "DATA", "STATE"):
            self.environment[f"XDG_{kind}_HOME"] = str(self.home / kind.lower())
        signalled = (FOLDER / "signalled.py").read_text()
        self.add_program("signalled", f"#!{sys.executable} -IS\n{signalled}")
        self.add_program("real", '#!/bin/sh\nunset FORKSERVER\nexec "$@"\n')

    def add_program(self, name: str, text: str) -> None:
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Make the inputs, and serve those that are served."""
        scenario = self.scenario
        for name in (*scenario.words("in"), *scenario.words("serve")):
            inputs.make(name, self.work)
        for name, text in scenario.given().items():
            file = self.home / name[2:] if name.startswith("~/") else self.work / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self.environment |= dict(line.split("=", 1) for line in scenario.values("env"))
        if not (served := scenario.words("serve")):
            yield
            return
        with serve_writable() as (endpoint, self.objects):
            self.environment |= store_environment(endpoint) | {"SERVER": endpoint}
            self.texts[endpoint] = "$SERVER"
            self.texts[endpoint.removeprefix("http://")] = "$HOST"
            for name in served:
                for file in list_files(self.work / name):
                    self.objects[f"bucket/{file.relative_to(self.work)}"] = file.read_bytes()
                    file.unlink()
            yield

    def outcome(self, command: str) -> list[str]:
        """The lines of a command's exit code, output, and changes of files."""
        before = self.digests()
        run = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        if "pgcli" not in command or command.startswith(": "):
            assert run.returncode == 0, f"{command}: {run.stderr.decode()}"
            return []
        lines = [f"exit {run.returncode}"]
        lines += block("stdout:", self.shown.text_lines(run.stdout.decode()))
        lines += block("stderr:", self.shown.text_lines(messages(run.stderr)))
        after = self.digests()
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                lines.append(self.normalised(f"gone {name}"))
            elif before.get(name) != after[name]:
                lines += block(
                    self.normalised(f"file {name}:"), self.file_lines(name) or ["(nothing)"]
                )
        return lines

    def file_lines(self, name: str) -> list[str]:
        if name.startswith("s3://"):
            data = self.objects[name.removeprefix("s3://")]
            return self.shown.data_lines(data, name)
        return self.shown.file_lines(self.work / name)

    def digests(self) -> dict[str, str]:
        """The digest of each file and link outside the state of runs, by name."""
        found = {}
        for file in list_files(self.work):
            link = file.is_symlink()
            data = os.fsencode(file.readlink()) if link else file.read_bytes()
            found[str(file.relative_to(self.work))] = hashlib.sha256(data).hexdigest()
        for key, data in dict(self.objects).items():
            if ".pgcli/" not in key:
                found[f"s3://{key}"] = hashlib.sha256(data).hexdigest()
        return found

    def normalised(self, text: str) -> str:
        """A line of a text without what varies."""
        text = self.renamed(text)
        for pattern, replacement in PATTERNS:
            text = re.sub(pattern, replacement, text)
        return text

    def renamed(self, text: str) -> str:
        """A value without paths and addresses of this run, and without what the scenario names."""
        for place, name in self.texts.items():
            text = text.replace(place, name)
        for line in self.scenario.values("vary"):
            pattern, _, replacement = line.partition(" => ")
            text = re.sub(pattern, replacement, text)
        return text


def base_environment() -> dict[str, str]:
    """The variables of every command; its scenario may override them."""
    return {
        "PYTHONPATH": str(forkserver.ROOT),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def list_files(folder: Path) -> Iterator[Path]:
    """The regular files and links below a folder, not those in the state of a run."""
    if folder.is_file():
        yield folder
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(".pgcli")]
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        files = [Path(place) / name for name in (*links, *names)]
        yield from (file for file in files if file.is_symlink() or file.is_file())


def block(title: str, lines: list[str]) -> list[str]:
    return [title, *(f"| {line}".rstrip() for line in lines)] if lines else []


def messages(stderr: bytes) -> str:
    """Standard error without progress and blank lines."""
    text = stderr.decode(errors="backslashreplace")
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]
    return "".join(f"{line}\n" for line in lines if line)


def differences(recorded: str, now: str) -> list[str]:
    """The lines that differ, a pair each; floats may differ by the tolerance."""
    pairs = zip_longest(recorded.splitlines(), now.splitlines(), fillvalue="(no line)")
    return [differing_ends(old, new) for old, new in pairs if not alike(old, new)]


def differing_ends(old: str, new: str) -> str:
    """Both lines; of long ones the part around the first difference."""
    equal = next((n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
    first = max(0, equal - 100) if max(len(old), len(new)) > 300 else 0
    dots = "... " if first else ""
    return "\n".join(
        f"{sign} {dots}{text[first : first + 300]}"
        for sign, text in zip("-+", (old, new), strict=True)
    )


def alike(old: str, new: str) -> bool:
    """Whether lines are equal but for small differences of floats."""
    if old == new:
        return True
    if FLOAT.sub("#", old) != FLOAT.sub("#", new):
        return False
    pairs = zip(map(float, FLOAT.findall(old)), map(float, FLOAT.findall(new)), strict=True)
    return all(abs(a - b) <= 1e-5 + TOLERANCE * min(1, max(abs(a), abs(b))) for a, b in pairs)
