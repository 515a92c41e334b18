"""Downloads from the Hub: required files, interruptions, errors, checks and progress.

The Hub is a local server (tests/support/servers.py).
"""

import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from time import time
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http as http_requests
from rich.console import Console
from safetensors.numpy import save

from pgcli.checkpoints.find import find
from pgcli.checkpoints.hub import DownloadPlan
from pgcli.checkpoints.safetensors_files import read_headers
from pgcli.cli import progress as progress_module
from pgcli.cli.console import Screen
from pgcli.cli.run_on_screen import Downloads
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.text import byte_count
from tests.support.runs import wait_until
from tests.support.servers import Hub, digest

NAME = "somebody/some-model"
ROOT = Path(__file__).parents[2]
TOKEN = "hf_SECRETsecretSECRET"
WEIGHTS = "model.safetensors"
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


def tensors(kilobytes, seed=0):
    numbers = np.random.default_rng(seed).integers(0, 255, kilobytes * 1000, dtype=np.uint8)
    return save({f"weight-{seed}": numbers})


def index(*files):
    return json.dumps(
        {"weight_map": {f"weight-{n}": file for n, file in enumerate(files)}}
    ).encode()


SMALL = {
    "config.json": b'{"model_type": "paligemma"}',
    "tokenizer.json": b"{}" * 4000,
    "preprocessor_config.json": b"{}",
    "generation_config.json": b'{"eos_token_id": 1}',
}
MODEL = SMALL | {WEIGHTS: tensors(700)}
SHARDED = SMALL | {SHARDS[0]: tensors(500), SHARDS[1]: tensors(300, 1), INDEX: index(*SHARDS)}
ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": tensors(5)}
CLASSIFIER = {
    "config.json": b'{"model_type": "vit"}',
    "preprocessor_config.json": b"{}",
    WEIGHTS: tensors(300),
}
SIGLIP = {
    "config.json": b'{"model_type": "siglip"}',
    "preprocessor_config.json": b"{}",
    "tokenizer.json": b"{}" * 10,
    "special_tokens_map.json": b"{}",
    WEIGHTS: tensors(300),
}
SIGLIP_IMAGES = {name: data for name, data in SIGLIP.items() if name != "tokenizer.json"}
TOKENIZER_MODEL = {"tokenizer.model": b"{}", "added_tokens.json": b"{}"}
#: They name the token of padding.
TOKENIZER_SETTINGS = {"tokenizer_config.json": b"{}", "special_tokens_map.json": b"{}"}
NEVER_READ = {
    "pytorch_model.bin": b"a pickle",
    "modeling.py": b"raise SystemExit",
    "flax_model.msgpack": b"x",
    "README.md": b"# words",
    ".gitattributes": b"",
    "original/model.safetensors": b"not at the top",
}


@pytest.fixture
def hub():
    with Hub() as server:
        yield server


@pytest.fixture(autouse=True)
def machine(hub, monkeypatch, tmp_path):
    """A machine whose Hub is this server, with an empty cache and no token."""
    huggingface_hub.close_session()
    point_to(monkeypatch, hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)
    for module in (file_download, http_requests):  # no waits before a request is repeated
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: None, time=time))
    monkeypatch.chdir(tmp_path)


def point_to(monkeypatch, url):
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


class RecordedProgress:
    """Records the reported progress."""

    def __init__(self):
        self.messages, self.plans, self.counts, self.ended = [], [], [], False

    def message(self, text):
        self.messages.append(text)

    def start(self, plan):
        self.plans.append(plan)

    def advance(self, byte_count):
        assert not self.ended
        self.counts.append(byte_count)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.ended = True


def refusal(error=ModelUnavailable, name=NAME, revision=None, **more):
    """The message and the hint of the error: one line each, without a token."""
    with pytest.raises(error) as refused:
        find(name, revision, **more)
    message, hint = str(refused.value), refused.value.hint
    assert "\n" not in message + hint
    assert hint
    assert "SECRET" not in message + hint
    assert refused.value.exit_code == {ModelUnavailable: 10, InvalidCheckpoint: 16}[error]
    return message, hint


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def incomplete(tmp_path):
    return sorted(tmp_path.rglob("*.incomplete"))


def blob(file):
    """Where the cache keeps the contents of a file of MODEL or SHARDED."""
    blobs = Path(constants.HF_HUB_CACHE, f"models--{NAME.replace('/', '--')}", "blobs")
    return blobs / digest(file, (MODEL | SHARDED)[file])


#: What is fetched of repositories, and what else they have.
FETCHED = {
    "one file": (MODEL, {}),
    "shards": (SHARDED, {"more.safetensors": b"x"}),
    "one file and shards": (MODEL | {INDEX: SHARDED[INDEX]}, SHARDED),  # as in transformers
    "an adapter": (ADAPTER, SMALL),
    "a classifier": (CLASSIFIER, {}),
    "two towers": (SIGLIP, {}),
    "towers without a tokenizer": (SIGLIP_IMAGES, {}),
    "a tokenizer of text": (MODEL | TOKENIZER_SETTINGS, TOKENIZER_MODEL),
}


class TestDownload:
    @pytest.mark.parametrize("name", FETCHED)
    def test_required_files_are_fetched_and_found_offline(self, hub, monkeypatch, tmp_path, name):
        files, more = FETCHED[name]
        kind = "adapter" if name == "an adapter" else "model"
        commit = hub.add(NAME, NEVER_READ | more | files)
        found = find(NAME, kind=kind)
        assert (found.name, found.revision) == (NAME, commit)
        assert found.label == f"{NAME}@{commit}"
        assert contents(found.folder) == files
        # of files with the same content one
        assert hub.sent_bytes == {file: len(files[file]) for file in hub.sent_bytes}
        assert incomplete(tmp_path) == []
        hub.requests.clear()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert find(NAME, kind=kind) == find(NAME, commit, kind=kind) == found
        assert hub.requests == []

    def test_reports_its_size_and_progress(self, hub, tmp_path):
        hub.add(NAME, MODEL | NEVER_READ)
        recorded = RecordedProgress()
        find(NAME, progress=recorded)
        (plan,) = recorded.plans
        total = sum(map(len, MODEL.values()))
        assert (plan.name, plan.total, plan.cached, plan.missing) == (NAME, total, 0, total)
        assert plan.folder == tmp_path / "hub"
        assert plan.free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
        assert sum(recorded.counts) == total
        assert len(recorded.counts) > 5
        assert recorded.messages == []
        assert recorded.ended

    def test_cached_model_is_not_downloaded_or_hashed_again(self, hub, monkeypatch):
        hub.add(NAME, MODEL)
        found = find(NAME)
        hub.requests.clear()
        monkeypatch.setattr(hashlib, "file_digest", None)
        recorded = RecordedProgress()
        assert find(NAME, progress=recorded) == found
        assert [path for _, path, _ in hub.requests] == [f"/api/models/{NAME}/revision/main"]
        assert recorded.plans == recorded.messages == []
        hub.requests.clear()
        assert find(NAME, found.revision) == found
        assert hub.requests == []

    @pytest.mark.parametrize("revision", ["bfloat16", "refs/pr/3", "v1.0"])
    def test_other_revision_is_downloaded(self, hub, monkeypatch, revision):
        hub.add(NAME, MODEL)
        other = MODEL | {WEIGHTS: tensors(100, 7)}
        commit = hub.add(NAME, other, revisions=[revision])
        found = find(NAME, revision)
        assert found.revision == commit
        assert contents(found.folder) == other
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert find(NAME, revision) == found
        assert "HF_HUB_OFFLINE" in refusal()[0]

    def test_too_little_disk_space_is_an_error_before_the_download(
        self, hub, monkeypatch, tmp_path
    ):
        hub.add(NAME, MODEL)
        disk = namedtuple("disk", "total used free")
        needed = sum(map(len, MODEL.values()))
        monkeypatch.setattr(shutil, "disk_usage", lambda _: disk(10**9, 10**9, needed - 1))
        message, hint = refusal()
        size, free = byte_count(needed), byte_count(needed - 1)
        assert message == f"{NAME} needs {size} more on disk, and {tmp_path}/hub has {free} free"
        assert "HF_HOME" in hint
        assert not hub.sent_bytes
        monkeypatch.setattr(shutil, "disk_usage", lambda _: disk(10**9, 10**9, needed))
        find(NAME)


class TestRequiredFiles:
    @pytest.mark.parametrize(
        ("files", "kind", "message", "hint"),
        [
            (
                {name: data for name, data in SHARDED.items() if name != SHARDS[1]},
                "model",
                f"{NAME} has no {SHARDS[1]}, which its {INDEX} names",
                "--revision",
            ),
            (
                SMALL | NEVER_READ,
                "model",
                f"{NAME} has no safetensors file; "
                "pytorch_model.bin is a pickle, which can run code",
                "save_pretrained",
            ),
            ({"README.md": b"words"}, "model", f"{NAME} has no config.json", "Hugging Face layout"),
            (ADAPTER, "model", f"{NAME} is an adapter, not a model", "--adapter"),
            (MODEL, "adapter", f"{NAME} has no adapter_config.json", "--model"),
        ],
        ids=["shard", "pickle", "no config", "an adapter", "no adapter"],
    )
    def test_incomplete_repository_is_an_error_before_weights_are_downloaded(
        self, hub, files, kind, message, hint
    ):
        hub.add(NAME, files)
        found = refusal(InvalidCheckpoint, kind=kind)
        assert found[0] == message
        assert hint in found[1]
        assert not {*hub.sent_bytes} - {INDEX}


class TestInterruptedDownload:
    def test_cut_connection_is_resumed_in_the_same_run(self, hub):
        hub.add(NAME, MODEL)
        hub.cut_after[WEIGHTS] = [300_000, 0, 0, 200_000, 0]
        recorded = RecordedProgress()
        found = find(NAME, progress=recorded)
        assert contents(found.folder) == MODEL
        assert hub.ranges(WEIGHTS) == [None, *["bytes=300000-"] * 3, *["bytes=500000-"] * 2]
        assert hub.sent_bytes[WEIGHTS] == len(MODEL[WEIGHTS])
        assert sum(recorded.counts) == sum(map(len, MODEL.values()))

    def test_failed_download_keeps_complete_files(self, hub, tmp_path):
        hub.add(NAME, SHARDED)
        hub.cut_after[SHARDS[0]] = [123_456, *[0] * 6]
        message, hint = refusal()
        assert hub.url in message
        assert "the same command again" in hint
        assert incomplete(tmp_path) == []
        hub.sent_bytes.clear()
        recorded = RecordedProgress()
        assert contents(find(NAME, progress=recorded).folder) == SHARDED
        assert set(hub.sent_bytes) == {SHARDS[0]}
        assert recorded.plans[0].cached == sum(map(len, SHARDED.values())) - len(SHARDED[SHARDS[0]])

    @pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
    def test_signal_keeps_complete_files(self, hub, tmp_path, signum):
        hub.add(NAME, SHARDED)
        hub.stall_after[SHARDS[0]] = 400_000
        command = [sys.executable, "-m", "pgcli", "info", NAME]
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        run = subprocess.Popen(command, env=environment(hub, tmp_path), **streams)
        assert hub.stalled.wait(60)
        wait_until(lambda: all(blob(file).is_file() for file in SHARDED if file != SHARDS[0]))
        run.send_signal(signum)
        stderr = run.communicate(timeout=60)[1].decode()
        assert run.returncode == -signum
        if signum == signal.SIGINT:
            assert re.search(
                r"stopped after [\d.]+ kB of [\d.]+ kB: "
                "the same command resumes with the remaining files",
                stderr,
            )
        hub.stall_after.clear()
        hub.sent_bytes.clear()
        assert contents(find(NAME).folder) == SHARDED
        assert set(hub.sent_bytes) == {SHARDS[0]}


def test_gated_model_is_downloaded_with_an_accepted_token(hub, monkeypatch):
    hub.add(NAME, MODEL)
    hub.gated, hub.accepted_tokens = True, (TOKEN,)
    assert "licence" in refusal()[0]
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert contents(find(NAME).folder) == MODEL


class TestHubErrors:
    @pytest.mark.parametrize("token", ["hf_SECRET\x01SECRET", "hf_SECRETé", "hf_SECRET\tx"])
    def test_malformed_token_is_not_shown(self, hub, monkeypatch, token):
        hub.add(NAME, MODEL)
        monkeypatch.setenv("HF_TOKEN", token)
        message, hint = refusal()
        assert "token contains invalid characters" in message
        assert "HF_TOKEN" in hint

    @pytest.mark.parametrize("revision", ["", "../../x", "/etc/passwd", "a/../../b", "a\0b", "a b"])
    def test_invalid_revision_name_sends_no_request(self, hub, tmp_path, revision):
        hub.add(NAME, MODEL, revisions=[revision])
        assert refusal(revision=revision)[0] == f"{NAME} has no revision {revision!r}"
        assert hub.requests == []


class TestOffline:
    @pytest.mark.parametrize("lost", [SHARDS[1], "config.json", "tokenizer.json"])
    def test_offline_mode_with_incomplete_model(self, hub, monkeypatch, lost):
        hub.add(NAME, SHARDED)
        (find(NAME).folder / lost).resolve().unlink()
        hub.requests.clear()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "not complete in the cache, and HF_HUB_OFFLINE forbids" in refusal()[0]
        assert hub.requests == []

    @pytest.mark.parametrize("trouble", ["gone", "503", "token"])
    def test_unreachable_hub_with_cached_model(self, hub, monkeypatch, trouble):
        hub.add(NAME, MODEL)
        found = find(NAME)
        if trouble == "gone":
            point_to(monkeypatch, "http://127.0.0.1:9")
        elif trouble == "503":
            hub.listing_status = 503
        else:
            monkeypatch.setenv("HF_TOKEN", "hf_expired")
        recorded = RecordedProgress()
        assert find(NAME, progress=recorded) == found
        (message,) = recorded.messages
        assert f"cannot provide {NAME} now" in message
        assert found.revision[:12] in message

    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("http://127.0.0.1:9", "refused"),
            ("http://no-such-host.invalid", ""),
            ("https://{}", "SSL"),
        ],
        ids=["refused", "no such host", "no TLS"],
    )
    def test_unreachable_hub_without_model(self, hub, monkeypatch, url, reason):
        url = url.format(hub.url.removeprefix("http://"))
        point_to(monkeypatch, url)
        message, hint = refusal()
        assert message.startswith(
            f"{NAME} is not complete in the cache, and {url} cannot be reached"
        )
        assert reason in message
        assert "network" in hint

    def test_stalled_hub_times_out(self, hub, monkeypatch):
        hub.add(NAME, MODEL)
        hub.stall_after[WEIGHTS] = 0
        monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
        message, hint = refusal()
        assert "timed out" in message
        assert "the same command again" in hint


class TestDamage:
    @pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
    def test_corrupt_download_is_an_error_and_deleted(self, hub, file):
        hub.add(NAME, MODEL)
        hub.corrupted_at[file] = len(MODEL[file]) // 2
        message, hint = refusal(InvalidCheckpoint)
        assert message.startswith(f"{file} was damaged in the download")
        assert "the same command again" in hint
        assert not blob(file).exists()
        hub.corrupted_at.clear()
        hub.sent_bytes.clear()
        assert contents(find(NAME).folder) == MODEL
        assert hub.sent_bytes[file] == len(MODEL[file])

    def mended(self, hint):
        """Delete the file as the hint describes, and download it again."""
        Path(re.fullmatch(r"delete (\S+) and run the same command again.*", hint)[1]).unlink()
        return find(NAME)

    @pytest.mark.parametrize("file", [WEIGHTS, "config.json"])
    def test_cached_file_of_wrong_size_is_an_error(self, hub, file):
        hub.add(NAME, MODEL)
        file_path = find(NAME).folder / file
        os.truncate(file_path.resolve(), 20)
        message, hint = refusal(InvalidCheckpoint)
        assert message == (
            f"{file} in the cache is damaged: it has 20 bytes instead of {len(MODEL[file]):,}"
        )
        assert contents(self.mended(hint).folder) == MODEL

    @pytest.mark.parametrize("weights", [b"words", MODEL[WEIGHTS][:-9]])
    def test_invalid_file_on_the_hub_has_a_hint(self, hub, weights):
        hub.add(NAME, MODEL | {WEIGHTS: weights})
        file = find(NAME).folder / WEIGHTS
        with pytest.raises(InvalidCheckpoint, match="is not a valid safetensors file") as refused:
            list(read_headers(file))
        assert "--revision" in refused.value.hint


def environment(hub, tmp_path):
    """The environment of a shell in which this server is the Hub."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("HF_") and name not in ("NO_COLOR", "FORCE_COLOR")
    }
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    return kept | settings | {"OMP_NUM_THREADS": "1"}


def test_token_is_not_shown_by_a_traceback(hub, cli, monkeypatch):
    hub.add(NAME, MODEL)
    hub.gated, hub.other_tokens = True, (TOKEN,)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    code, out, err = cli("info", NAME, "--debug")
    assert code == 10, err
    assert "Traceback" in err
    assert TOKEN not in out + err


PLAN = DownloadPlan(
    "org/\x1b[31mmodel", Path("/cache"), 6_000_000_000, 1_000_000_000, 70_000_000_000
)


class TestProgressDisplay:
    def screen(self):
        screen = Screen(quiet=False)
        screen.is_terminal = False
        screen.console = Console(file=io.StringIO(), width=100, color_system=None)
        return screen, screen.console.file

    def test_log_has_lines_before_during_and_after(self, monkeypatch):
        monkeypatch.setattr(progress_module, "LOG_SECONDS", 0)
        screen, shown = self.screen()
        with Downloads(screen) as progress:
            progress.start(PLAN)
            progress.advance(2_000_000_000)
            progress.advance(3_000_000_000)
        first, second, third, last = shown.getvalue().splitlines()
        assert first == (
            "pgcli: downloading org/\\x1b[31mmodel: 5.0 GB, 1.0 GB is cached; "
            "into /cache, which has 70.0 GB free"
        )
        assert re.search(r"downloading: 3\.0 GB of 6\.0 GB \(50%\), .*B/s, .* left", second)
        assert "6.0 GB of 6.0 GB" in third
        assert re.search(r"downloaded 5\.0 GB in \d+ s; checksums match", last)


def test_python_interface_warns_of_an_unreachable_hub(hub, monkeypatch):
    hub.add(NAME, MODEL)
    find(NAME)
    point_to(monkeypatch, "http://127.0.0.1:9")
    with pytest.warns(UserWarning, match=f"cannot provide {NAME} now"):
        find(NAME)
