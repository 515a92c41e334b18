"""In containers, on odd file systems, in odd locales, and with stores that do not answer."""

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import (
    EXAMPLES,
    MANY,
    PRETEND,
    UNSHARE,
    has_namespaces,
    heed_signals,
    other_owner,
    saved,
    send_inside,
    started,
    wait_until,
)
from tests.support.stores import Trouble, unreliable_store

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "TMPDIR")}
    return kept | {"PGCLI_MODEL": "demo", "PYTHONPATH": str(ROOT)} | more


def first_process(*words: object, **more: Any) -> subprocess.Popen[bytes]:
    """A run of the pretended model as process 1 of a namespace."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"env": environment(PRETEND_SECONDS="0.05"), "preexec_fn": heed_signals}
    command = [*UNSHARE, *PRETEND, *map(str, words)]
    return subprocess.Popen(command, **pipes, **options | more)  # type: ignore[call-overload, no-any-return]


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="no namespaces for this user")


@needs_namespaces
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("source", ["folder", "stdin"])
def test_first_process_of_a_container_ends_with_the_signal(tmp_path, name, source):
    output, signum = tmp_path / "rows.jsonl", signal.Signals[name]
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(300):
        os.link(shutil.copy(EXAMPLES / "one.png", tmp_path / "one.png"), photos / f"{number}.png")
    run = first_process("caption", photos if source == "folder" else "-", "-o", output)
    assert run.stdin is not None
    run.stdin.write(f"{EXAMPLES / 'one.png'}\n".encode() * 3)
    run.stdin.flush()
    wait_until(lambda: len(saved(output)) > 1)
    send_inside(run, signum)
    assert run.wait(timeout=60) == 128 + signum
    assert run.stderr is not None
    err = run.stderr.read().decode()
    assert "Traceback" not in err
    assert "finishing the rows in progress" in err
    assert f"stopped with {len(saved(output))} rows saved" in err


@needs_namespaces
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_first_process_of_a_container_ends_before_the_first_row(tmp_path, name):
    """Equally while it imports modules and while it waits for its input."""
    run = first_process("caption", "-", "-o", tmp_path / "rows.jsonl")
    wait_until(lambda: (tmp_path / "rows.jsonl.pgcli").exists())
    send_inside(run, signal.Signals[name])
    assert run.wait(timeout=60) == 128 + signal.Signals[name]
    assert run.stderr is not None
    assert b"Traceback" not in run.stderr.read()


@needs_namespaces
@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["caption", "none"], 2)])
def test_first_process_of_a_container_has_the_exit_code(words, code):
    run = first_process(*words)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == code
    assert bool(out) == (code == 0)


NO_LOCKS = (errno.EOPNOTSUPP, errno.ENOSYS)


@pytest.mark.parametrize("code", [*NO_LOCKS, errno.ENOLCK, errno.EINVAL])
def test_file_system_without_locks_is_not_a_bug(cli, pretended, workdir, monkeypatch, code):
    def flock(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    words = ["caption", EXAMPLES, "-o", "rows.jsonl", "--model", "demo", "--quiet"]
    exit_code, _, err = cli(*words)
    if code in NO_LOCKS:
        assert (exit_code, err) == (0, "")
        assert saved(workdir / "rows.jsonl") == list(range(len(list(EXAMPLES.iterdir()))))
        assert cli("status", "rows.jsonl")[0] == 0
    else:
        assert exit_code == 14
        assert f"cannot lock rows.jsonl.pgcli/lock: {os.strerror(code)}" in err
        assert "flock" in err


def test_second_run_is_rejected_if_only_the_output_lacks_locks(tmp_path, cli, monkeypatch):
    output, flock = tmp_path / "rows.jsonl", fcntl.flock
    with other_owner(str(output)):

        def flock_elsewhere(descriptor: int, operation: int) -> None:
            if "rows.jsonl.pgcli" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", flock_elsewhere)
        code, _, err = cli("caption", EXAMPLES, "-o", output, "--model", "demo")
    assert code == 12
    assert "in use by process" in err


def test_ids_do_not_depend_on_the_locale(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("grün.png", "写真.png", "one.png"):
        shutil.copy(EXAMPLES / "one.png", photos / name)
    shutil.copy(EXAMPLES / "one.png", os.fsencode(photos) + b"/\xff.png")
    shutil.copy(EXAMPLES / "one.png", tmp_path / "写.png")
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text('{"image": "photos/grün.png", "id": "é"}\n', encoding="utf-8")
    locales: list[dict[str, str]] = [
        {"LC_ALL": "C.UTF-8"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
        {"LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ]

    def captions(locale: dict[str, str], *words: str) -> bytes:
        run = subprocess.run(
            [*PRETEND, "caption", *words],
            env=environment(**locale),
            cwd=tmp_path,
            check=False,
            capture_output=True,
            timeout=100,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    outputs = set()
    for locale in locales:
        outputs.add(captions(locale, "photos", "rows.jsonl", "写.png", "--no-timing"))
        limit = [] if locale is locales[-1] else ["--limit", "2"]
        captions(locale, "photos", "-o", "out.jsonl", *limit)
    assert len(outputs) == 1
    ids = [json.loads(line)["id"] for line in outputs.pop().splitlines()]
    assert "photos/grün.png" in ids
    assert {"é", "写.png", "photos/写真.png"} <= {*ids}
    assert saved(tmp_path / "out.jsonl") == [0, 1, 2, 3]


HANGING = {
    "part": ("PUT .*/part-", []),
    "first request": ("GET .*rows.pgcli", []),
    "heartbeat": ("PUT .*/owner.json", []),
    "shard": ("PUT .*/part-", ["--shard", "0/1"]),
}


@pytest.mark.parametrize("name", HANGING)
@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM] * 2, pytest.param([signal.SIGTERM], marks=pytest.mark.slow)]
)
def test_signal_is_obeyed_while_an_output_store_hangs(name, signals):
    pattern, options = HANGING[name]
    with unreliable_store() as server:
        server.troubles.append(Trouble(pattern, "silent"))
        words = ["caption", *MANY, "-o", "s3://bucket/rows/", "--rows-per-file", "2", *options]
        run = started(*words, seconds=0.01)
        wait_until(lambda: any(re.search(pattern, request) for _, request in server.requests))
        began = time.monotonic()
        for signum in signals:
            run.send_signal(signum)
            time.sleep(0.5)
        err = run.communicate(timeout=60)[1].decode()
        seconds = time.monotonic() - began
    assert run.returncode == -signal.SIGTERM, err
    assert "Traceback" not in err
    assert seconds < (2 if len(signals) > 1 else 10)


SOURCES = {
    "list": ("GET .*list-type", "s3://bucket/photos"),
    "kind": ("GET .*/photos/", "s3://bucket/photos/0.png"),
    "image": ("GET .*/photos/", "s3://bucket/photos"),
    "manifest": ("GET .*/rows.jsonl", "s3://bucket/rows.jsonl"),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_is_obeyed_while_a_source_hangs(tmp_path, name, signum):
    pattern, source = SOURCES[name]
    with unreliable_store() as server:
        server.files |= {"bucket/photos/0.png": (EXAMPLES / "one.png").read_bytes()}
        server.files |= {"bucket/rows.jsonl": b'{"image": "photos/0.png"}\n'}
        server.troubles.append(Trouble(pattern, "silent"))
        run = started("caption", source, "--allow-urls", "-o", tmp_path / "rows.jsonl")
        wait_until(lambda: any(re.search(pattern, request) for _, request in server.requests))
        began = time.monotonic()
        run.send_signal(signum)
        err = run.communicate(timeout=60)[1].decode()
    assert run.returncode == -signum, err
    assert "Traceback" not in err
    assert time.monotonic() - began < 3
