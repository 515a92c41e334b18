"""Model names: folders, Hub names and `demo`, and the errors of all other names."""

import errno
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import constants
from huggingface_hub import errors as hub
from huggingface_hub.utils import hf_raise_for_status

from pgcli.checkpoints import find as find_module
from pgcli.checkpoints import hub as hub_module
from pgcli.checkpoints.find import Checkpoint, cached_models, find
from pgcli.errors import ModelUnavailable

NAME = "google/paligemma-3b-mix-224"
PAGE = f"https://huggingface.co/{NAME}"


@pytest.fixture(autouse=True)
def online(monkeypatch, tmp_path):
    """As on a machine with a network, an empty cache and no token."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)


def refusal(name=NAME, revision=None):
    with pytest.raises(ModelUnavailable) as refused:
        find(name, revision)
    assert refused.value.exit_code == 10
    message, hint = str(refused.value), refused.value.hint
    assert "\n" not in message + hint
    return message, hint


def hub_error(status, code=None, message=None):
    """The error that huggingface_hub raises for a response of the Hub."""
    known = {"X-Error-Code": code, "X-Error-Message": message}
    headers = {name: value for name, value in known.items() if value}
    request = httpx2.Request("GET", f"https://huggingface.co/api/models/{NAME}")
    with pytest.raises(hub.HfHubHTTPError) as error:
        hf_raise_for_status(httpx2.Response(status, headers=headers, request=request))
    return error.value


@pytest.fixture
def fail_with(monkeypatch):
    def fail_with(error):
        def model_info(api, name, **options):
            raise error

        monkeypatch.setattr(hub_module.HfApi, "model_info", model_info)

    return fail_with


class TestNames:
    @pytest.mark.parametrize("name", ["model", "./model", "org/model", "google/model/"])
    def test_folder_wins_over_hub_name(self, tmp_path, name, fail_with):
        fail_with(AssertionError("the Hub was called"))
        Path(name).mkdir(parents=True)
        assert find(name) == Checkpoint(name, Path(name), None)
        assert find(name).label == name

    def test_tilde_is_the_home_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "model").mkdir()
        assert find("~/model") == Checkpoint("~/model", tmp_path / "model")

    def test_demo_has_a_revision_from_its_weights(self, tmp_path, monkeypatch):
        labels = set()
        for number, weights in enumerate((b"one", b"two", b"two")):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(weights)
            monkeypatch.setattr(find_module, "BUILTIN", folder)
            found = find("demo")
            assert (found.name, found.folder) == ("demo", folder)
            assert found.label == f"demo@{found.revision}"
            labels.add(found.label)
        assert len(labels) == 2

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "gpt2",
            "/nowhere/model",
            "~unknown-user/model",
            "https://huggingface.co/google/paligemma",
            "a\0b",
        ],
    )
    def test_invalid_model_name_lists_valid_ones(self, name, fail_with):
        fail_with(AssertionError("the Hub was called"))
        message, hint = refusal(name)
        assert f"no model folder {name!r}" in message
        assert "google/paligemma2-3b-mix-224" in hint
        assert "demo" in hint

    @pytest.mark.parametrize("name", ["org/" + "a" * 200, "org/a..b", "org/a--b", "org/model.git"])
    def test_name_that_the_hub_does_not_allow(self, name):
        message, hint = refusal(name)
        assert f"{name!r} is neither a folder nor a valid Hub name" in message
        assert "spelling" in hint


INVALID = "Invalid credentials in Authorization header"
#: The error that huggingface_hub raises, what the message contains, and what the hint contains.
FAILURES = [
    ((401, "RepoNotFound"), f"no model {NAME!r}, or it is private", "spelling"),
    ((404, "RepoNotFound"), f"no model {NAME!r}, or it is private", "`hf auth login`"),
    ((403, None, "Access to this resource is disabled."), "could not be downloaded: 403", PAGE),
    ((500,), "could not be downloaded: 500", "try again"),
    (ConnectionError("[Errno 111] refused"), "cannot be reached: [Errno 111] refused", "network"),
    (httpx2.ReadTimeout("timed out"), "cannot be reached: timed out", "network"),
    (httpx2.RemoteProtocolError("closed\nwithout more"), "cannot be reached: closed", "network"),
    (ValueError("\n\nExpecting value: line 1\n1"), "downloaded: Expecting value", "try again"),
    (OSError(errno.ENOSPC, "no space", "/blob"), "could not be stored in", "HF_HOME"),
]


@pytest.mark.parametrize(("error", "message", "hint"), FAILURES, ids=map(str, range(len(FAILURES))))
def test_each_failure_of_the_hub_has_a_message_and_a_remedy(fail_with, error, message, hint):
    fail_with(hub_error(*error) if isinstance(error, tuple) else error)
    found = refusal()
    assert message in found[0]
    assert hint in found[1]


@pytest.mark.parametrize(
    ("status", "variable", "stored", "message", "hint"),
    [
        (403, "HUGGING_FACE_HUB_TOKEN", "", "machine (HUGGING_FACE_HUB_TOKEN)", "`unset HUGGING"),
        (401, None, "hf_SECRET", "could not be downloaded: 401", "is not valid: set it again"),
    ],
)
def test_the_source_of_an_invalid_token_is_named_but_not_the_token(
    fail_with, monkeypatch, status, variable, stored, message, hint
):
    if variable:
        monkeypatch.setenv(variable, "hf_SECRET")
    Path(constants.HF_TOKEN_PATH).write_text(stored)
    fail_with(hub_error(status, *(["GatedRepo"] if status == 403 else [None, INVALID])))
    found = refusal()
    assert message in found[0]
    assert hint in found[1]
    assert "SECRET" not in found[0] + found[1]


@pytest.mark.parametrize("damaged", [b"", b"[]", b"[" * 10**5, b'{"model_type": 1}', "missing"])
def test_damaged_config_hides_no_other_cached_model(tmp_path, monkeypatch, damaged):
    """Its bytes, or what it links to."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("first", "damaged", "last"):
        folder = tmp_path / "hub" / f"models--google--{name}" / "snapshots" / "a"
        folder.mkdir(parents=True)
        config = folder / "config.json"
        content = b'{"model_type": "paligemma"}' if name != "damaged" else damaged
        config.write_bytes(content) if isinstance(content, bytes) else config.symlink_to(content)
    assert cached_models() == ["google/first", "google/last"]


def test_missing_or_invalid_cache_has_no_models(monkeypatch, tmp_path):
    for folder in (tmp_path / "missing", "x" * 5000, __file__):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
        assert cached_models() == []
