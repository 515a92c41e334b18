"""A local folder: files are complete or absent, and only regular files are opened."""

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pgcli.errors import OutputExists, OutputFailed, PgcliError
from pgcli.stores import Held, LocalStore, files, folders
from pgcli.stores.writing import published, temporary_name, write_json
from tests.support.runs import ends_soon

ROOT = Path(__file__).parents[2]
NAMES = ["run.json", "open/000.jsonl"]
#: Every way to access a file by its name.
USES: dict[str, Callable[[LocalStore, str], Any]] = {
    "read": lambda store, name: store.read(name),
    "create": lambda store, name: store.create(name, b"new"),
    "replace": lambda store, name: store.replace(name, b"new"),
    "delete": lambda store, name: store.delete([name]),
    "open_append": lambda store, name: store.open_append(name),
    "lock": lambda store, name: store.lock(name, timeout_seconds=0).__enter__(),
}


@pytest.fixture
def store(tmp_path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path / "state", create=True)
    yield store
    store.close()


def names_in(folder: Path) -> list[str]:
    """The names of everything in the folder, including hidden files."""
    return sorted(path.name for path in folder.iterdir())


def link(path: Path) -> None:
    victim = path.parents[1 if path.parent.name == "state" else 2] / "victim"
    victim.write_bytes(b"precious")
    path.symlink_to(victim)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def listen(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


STRANGERS: dict[str, Callable[[Path], object]] = {
    "a link": link,
    "a link to nothing": dangling,
    "a FIFO": os.mkfifo,
    "a folder": Path.mkdir,
    "a socket": listen,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("use", USES)
def test_a_name_that_is_not_a_file_is_an_error(store, tmp_path, use, kind, name):
    path = store.path / name
    path.parent.mkdir(exist_ok=True)
    STRANGERS[kind](path)
    before = path.lstat()
    with ends_soon(), pytest.raises(OutputExists) as problem:
        USES[use](store, name)
    assert str(path) in str(problem.value)
    assert kind.removesuffix(" to nothing") in str(problem.value)
    assert os.path.samestat(path.lstat(), before)
    assert [file.read_bytes() for file in tmp_path.glob("victim")] in ([], [b"precious"])
    assert {file.name for file in store.path.rglob("*")} <= {path.name, path.parent.name}


def test_nothing_is_appended_to_a_hard_link(store, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (store.path / "rows").hardlink_to(victim)
    with pytest.raises(OutputExists, match="rows is a hard link"):
        store.open_append("rows")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["a link", "a FIFO", "a file"])
def test_folder_in_the_store_is_a_folder(store, kind, use):
    folder, victims = store.path / "open", store.path.parent / "victims"
    victims.mkdir()
    (victims / "000.jsonl").write_bytes(b"precious")
    makes = {"a link": lambda: folder.symlink_to(victims), "a FIFO": lambda: os.mkfifo(folder)}
    makes.get(kind, folder.touch)()
    with pytest.raises(OutputExists, match="open is " + kind):
        USES[use](store, "open/000.jsonl")
    assert [file.read_bytes() for file in victims.iterdir()] == [b"precious"]


def test_file_that_becomes_a_link_between_two_calls_is_not_followed(store, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    store.replace("log.txt", b"old")
    is_regular = files.is_regular

    def swap(path: str, *arguments: Any, **options: Any) -> bool:
        result = is_regular(path, *arguments, **options)
        (store.path / path).unlink()
        (store.path / path).symlink_to(victim)
        return result

    monkeypatch.setattr(files, "is_regular", swap)
    with pytest.raises(PgcliError):
        store.open_append("log.txt")
    (store.path / "log.txt").unlink()
    (store.path / "log.txt").write_bytes(b"")
    monkeypatch.setattr(files, "is_regular", is_regular)
    monkeypatch.setattr(folders, "is_regular", swap)
    store.replace("log.txt", b"new")  # replaces the link, not its target
    assert victim.read_bytes() == b"precious"


def test_file_that_becomes_a_fifo_between_two_calls_is_not_used(store, monkeypatch):
    store.replace("log.txt", b"old")
    open_ = os.open

    def swap(path: Any, *arguments: Any, **options: Any) -> int:
        if path == "log.txt":
            (store.path / "log.txt").unlink()
            os.mkfifo(store.path / "log.txt")
        return open_(path, *arguments, **options)

    monkeypatch.setattr(os, "open", swap)
    for use in (store.read, store.open_append):
        with ends_soon(), pytest.raises(OutputExists, match="is a FIFO"):
            use("log.txt")
        (store.path / "log.txt").unlink()
        (store.path / "log.txt").touch()


def test_folder_may_be_a_link_only_with_follow(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "mine").touch()
    (tmp_path / "state").symlink_to("docs")
    for create in (True, False):
        with pytest.raises(OutputExists, match="is a link"):
            LocalStore(tmp_path / "state", create=create)
    assert [entry.name for entry in LocalStore(tmp_path / "state", follow=True).list()] == ["mine"]
    (tmp_path / "file").touch()
    with pytest.raises(OutputExists):
        LocalStore(tmp_path / "file", create=True)
    with pytest.raises(OutputExists, match="is a file"):
        LocalStore(tmp_path / "file")
    for missing in ("none", "file/below"):
        with pytest.raises(FileNotFoundError):
            LocalStore(tmp_path / missing)
    LocalStore(tmp_path / "none" / "deeper", create=True)
    assert (tmp_path / "none" / "deeper").is_dir()


def test_folder_swapped_for_a_link_stays_in_use(store, tmp_path):
    """The open folder is used: a link that replaces it later has no effect."""
    store.replace("a", b"1")
    victims = tmp_path / "victims"
    victims.mkdir()
    store.path.rename(tmp_path / "moved")
    (tmp_path / "state").symlink_to(victims)
    store.replace("a", b"2")
    assert (tmp_path / "moved" / "a").read_bytes() == b"2"
    assert not list(victims.iterdir())


CREATE = """
import sys
from pathlib import Path
from pgcli.stores import LocalStore
store = LocalStore(Path(sys.argv[1]), create=True)
print("ready", flush=True)
for number in range(200):
    sys.stdin.readline()
    print(int(store.create(f"retried/{number}", sys.argv[2].encode() * 5000)), flush=True)
"""


def test_one_of_several_processes_creates_a_file(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE, str(tmp_path / "state"), letter],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )
        for letter in "ab"
    ]  # fmt: skip
    pipes = [(one.stdin, one.stdout) for one in processes]
    for _, answers in pipes:
        assert answers
        assert answers.readline() == "ready\n"
    for number in range(200):
        for asked, _ in pipes:
            assert asked
            asked.write("\n")
            asked.flush()
        created = [answers.readline() for _, answers in pipes if answers]
        assert sorted(created) == ["0\n", "1\n"], number
        content = (tmp_path / "state" / "retried" / str(number)).read_bytes()
        assert content == "ab"[created.index("1\n")].encode() * 5000
    for process in processes:
        process.communicate(timeout=100)
    assert len(list((tmp_path / "state" / "retried").iterdir())) == 200


def test_temporary_files_of_killed_processes_are_removed_and_no_others(store, tmp_path):
    kept = {".hidden.part", temporary_name("a.jsonl"), temporary_name("a.jsonl.b")}
    for name in [*kept, *(temporary_name("xa.jsonl") for _ in range(2))]:
        (store.path / name).touch()
    link = store.path / temporary_name("xa.jsonl")  # pgcli makes no links
    link.symlink_to(tmp_path / "victim")
    store.remove_abandoned(is_own="xa.jsonl".__eq__)
    assert {*names_in(store.path)} == {*kept, link.name}
    store.create("open/1", b"1")
    (store.path / "open" / temporary_name("2")).touch()
    for folder in ("", "open", "none"):
        store.remove_abandoned(folder)
    assert {*names_in(store.path)} == {".hidden.part", link.name, "open"}
    assert names_in(store.path / "open") == ["1"]


class Failing:
    """System calls of which the `number`-th fails."""

    CALLS = ("open", "fsync", "link", "replace", "unlink", "mkdir", "stat", "lseek", "scandir")

    def __init__(self, patch: pytest.MonkeyPatch, number: int, problem: int):
        self.number, self.problem = number, problem
        for name in self.CALLS:
            patch.setattr(os, name, self.over(getattr(os, name)))

    def over(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.number -= 1
            if self.number == 0:
                raise OSError(self.problem, os.strerror(self.problem))
            return real(*arguments, **options)

        return call


@pytest.mark.parametrize("problem", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_each_failing_call_is_an_error_and_leaves_complete_files(tmp_path, problem, monkeypatch):
    def use(folder: Path) -> None:
        store = LocalStore(folder, create=True)
        with store.lock("lock", timeout_seconds=0):
            store.create("run.json", b"1" * 9)
            store.create("retried/0", b"2" * 9)
            store.replace("run.json", b"3" * 9)
            os.close(store.open_append("open/000.jsonl"))
            list(store.list("retried/"))
            store.delete(["retried/0", "none/0"])
            store.read("run.json")
        store.close()

    contents = {
        "run.json": {b"1" * 9, b"3" * 9},
        "0": {b"2" * 9},
        "000.jsonl": {b""},
        "lock": {b""},
    }
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for number in range(1, 200):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch:
            failing = Failing(patch, number, problem)
            with suppress(OutputFailed):
                use(folder)
        for file in folder.rglob("[!.]*"):
            assert file.is_dir() or file.read_bytes() in contents[file.name], (number, file)
        use(folder)
        if failing.number > 0:
            break
        shutil.rmtree(folder)
    assert number > 40


def test_full_disk_leaves_the_earlier_file(store):
    store.replace("run.json", b"old")

    def fill(file: Any) -> None:
        file.write(b"some")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputFailed, match="No space left"):
        store.publish("run.json", fill)
    assert store.read("run.json") == b"old"
    assert names_in(store.path) == ["run.json"]


def test_exclusive_locks_exclude_and_shared_locks_do_not(store):
    other = LocalStore(store.path)
    with store.lock("lock"):
        for shared in (True, False):
            with pytest.raises(Held), other.lock("lock", shared=shared, timeout_seconds=0):
                pass
    with (
        store.lock("lock", shared=True),
        other.lock("lock", shared=True, timeout_seconds=0),
        pytest.raises(Held),
        other.lock("lock", timeout_seconds=0.05),
    ):
        pass
    with other.lock("lock", timeout_seconds=0):
        pass


def test_exclusive_lock_is_seen(store, monkeypatch):
    assert store.is_locked("lock") is False
    assert names_in(store.path) == []
    with store.lock("lock", shared=True):
        assert store.is_locked("lock") is False
    with store.lock("lock"):
        assert store.is_locked("lock") is True
        assert LocalStore(store.path).is_locked("lock") is True
    assert store.is_locked("lock") is False

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(folders.fcntl, "flock", flock)
    assert store.is_locked("lock") is None


def test_lock_of_a_removed_folder_moves_to_the_new_one(store):
    store.remove_folders()
    assert not store.path.exists()
    with store.lock("lock"):
        assert (store.path / "lock").exists()
        assert store.create("run.json", b"1")
    waiting = LocalStore(store.path)

    def remove() -> None:
        time.sleep(0.2)
        held.delete(["lock", "run.json"])
        held.remove_folders()
        block.__exit__(None, None, None)

    held = LocalStore(store.path)
    block = held.lock("lock")
    block.__enter__()
    thread = threading.Thread(target=remove)
    thread.start()
    with waiting.lock("lock", timeout_seconds=60):
        thread.join()
        assert names_in(store.path) == ["lock"]


def test_only_empty_folders_are_removed(store):
    store.create("retried/1", b"")
    store.create("open/1", b"")
    store.delete(["open/1"])
    store.remove_folders()
    assert names_in(store.path) == ["retried"]
    store.delete(["retried/1"])
    store.remove_folders()
    assert not store.path.exists()


def test_descriptors_are_closed(tmp_path):
    def use() -> None:
        store = LocalStore(tmp_path / "state", create=True)
        os.close(store.open_append("open/0"))
        store.create("retried/1", b"")
        next(store.list("retried/"))
        (tmp_path / "state" / "log.txt").symlink_to("x")
        with pytest.raises(OutputExists):
            store.open_append("log.txt")
        (tmp_path / "state" / "log.txt").unlink()
        with pytest.raises(OutputExists):
            store.open_append("retried")
        with pytest.raises(OutputExists):
            store.create("retried/1/x", b"")
        with pytest.raises(OutputFailed):
            store.create("x" * 300, b"")
        with store.lock("lock"):
            pass

    use()
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(5):
        use()
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_file_at_any_path_is_published_complete(tmp_path):
    file = tmp_path / "x.json"
    for replace, text in ((False, "first"), (True, "second")):
        with published(file, replace=replace) as path:
            path.write_text(text)
        assert file.read_text() == text
    with pytest.raises(OutputExists), published(file, replace=False) as path:
        path.write_text("third")
    with pytest.raises(OutputFailed, match="No space"), published(file):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert file.read_text() == "second"
    write_json(file, {"a": 1})
    assert file.read_text() == '{\n "a": 1\n}\n'
    assert names_in(tmp_path) == ["x.json"]
    assert len(os.fsencode(temporary_name("é" * 127))) < 255


def test_file_is_created_once_without_hard_links(store, tmp_path, monkeypatch):
    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(folders, "is_regular", lambda *_: False)  # the file appears after the check
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert (store.read("a"), names_in(store.path)) == (b"1", ["a"])
    with published(tmp_path / "b", replace=False) as path:
        path.write_text("1")
    with pytest.raises(OutputExists), published(tmp_path / "b", replace=False) as path:
        path.write_text("2")
    assert (tmp_path / "b").read_text() == "1"
