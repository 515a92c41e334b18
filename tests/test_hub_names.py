"""A model's name leads to its files, or to a message that says what to do."""

import errno
from pathlib import Path

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import constants, set_client_factory
from huggingface_hub import errors as hub
from huggingface_hub.utils import hf_raise_for_status
from huggingface_hub.utils._http import default_client_factory, hf_request_event_hook

from pgcli.checkpoints import find as find_module
from pgcli.checkpoints.find import NEEDED, Checkpoint, find
from pgcli.errors import ModelUnavailable

NAME = "google/paligemma-3b-mix-224"
SHA = "8d2f7bc9c15d71a00c14f9eb7e4c7b99ef79e11e"
PAGE = f"https://huggingface.co/{NAME}"


@pytest.fixture(autouse=True)
def online(monkeypatch, tmp_path):
    """As on a machine with a network, an empty cache and no token."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    monkeypatch.chdir(tmp_path)


def refusal(name=NAME, revision=None):
    with pytest.raises(ModelUnavailable) as refused:
        find(name, revision)
    assert refused.value.exit_code == 10
    message, hint = str(refused.value), refused.value.hint
    assert "\n" not in message + hint
    return message, hint


def answered(status, code=None, message=None):
    """The error that huggingface_hub makes of an answer of the Hub."""
    known = {"X-Error-Code": code, "X-Error-Message": message}
    headers = {name: value for name, value in known.items() if value}
    request = httpx2.Request("GET", f"https://huggingface.co/api/models/{NAME}")
    with pytest.raises(hub.HfHubHTTPError) as error:
        hf_raise_for_status(httpx2.Response(status, headers=headers, request=request))
    return error.value


@pytest.fixture
def raising(monkeypatch):
    def raising(error):
        def snapshot_download(*args, **kwargs):
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    return raising


class TestNames:
    @pytest.mark.parametrize("name", ["model", "./model", "org/model", "google/model/"])
    def test_a_folder_wins_over_a_hub_name(self, tmp_path, name, raising):
        raising(AssertionError("the Hub was asked"))
        Path(name).mkdir(parents=True)
        assert find(name) == Checkpoint(name, Path(name), None)
        assert find(name).label == name

    def test_a_tilde_is_the_home_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "model").mkdir()
        assert find("~/model") == Checkpoint("~/model", tmp_path / "model")

    def test_demo_is_the_built_in_model_and_its_weights_make_its_revision(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(find_module, "BUILTIN", tmp_path)
        labels = set()
        for weights in (b"one", b"two", b"two"):
            (tmp_path / "model.safetensors").write_bytes(weights)
            found = find("demo")
            assert (found.name, found.folder) == ("demo", tmp_path)
            assert found.label == f"demo@{found.revision}"
            labels.add(found.label)
        assert len(labels) == 2

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "gpt2",
            "no such folder/model",
            "./nowhere",
            "/nowhere/model",
            "~nobody-of-that-name/model",
            "a/b/c",
            "-/x",
            "org/model@main",
            "https://huggingface.co/google/paligemma",
            "model.safetensors",
            "a\0b",
            "a" * 5000,
            "org/" + "a/" * 5000,
        ],
    )
    def test_what_is_neither_folder_nor_hub_name_says_what_there_is(self, name, raising):
        raising(AssertionError("the Hub was asked"))
        message, hint = refusal(name)
        assert f"no model folder {name!r}" in message
        assert "google/paligemma-3b-mix-224" in hint
        assert "demo" in hint

    def test_a_file_is_no_folder(self, tmp_path):
        Path("model.safetensors").touch()
        assert "no model folder" in refusal("model.safetensors")[0]

    @pytest.mark.parametrize("name", ["org/" + "a" * 200, "org/a..b", "org/a--b", "org/model.git"])
    def test_a_name_that_the_hub_does_not_allow(self, name):
        message, hint = refusal(name)
        assert f"{name!r} is neither a folder nor a name that the Hub allows" in message
        assert "spelling" in hint


class TestWhatTheHubAnswers:
    """Each failure as huggingface_hub raises it, with its own message and remedy."""

    def test_a_licence_not_accepted_and_no_token(self, raising):
        raising(answered(401, "GatedRepo"))
        message, hint = refusal()
        assert message == f"{NAME} needs its licence accepted, and no token is set on this machine"
        assert hint == f"open {PAGE} and accept the licence, then `hf auth login`"

    def test_a_licence_not_accepted_by_the_token_s_user(self, raising, monkeypatch):
        monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_SECRET")
        raising(answered(403, "GatedRepo"))
        message, hint = refusal()
        assert "by the user whose token is set" in message
        assert "`hf auth whoami`" in hint
        assert PAGE in hint
        assert "SECRET" not in message + hint

    @pytest.mark.parametrize("status", [401, 404])
    def test_an_unknown_or_private_model(self, raising, status):
        raising(answered(status, "RepoNotFound"))
        message, hint = refusal()
        assert f"no model {NAME!r}, or it is private" in message
        assert "spelling" in hint
        assert "`hf auth login`" in hint

    def test_an_unknown_revision(self, raising):
        raising(answered(404, "RevisionNotFound"))
        message, hint = refusal(revision="float99")
        assert message == f"{NAME} has no revision 'float99'"
        assert hint == f"see {PAGE}/commits/main"

    def test_a_forbidden_repository(self, raising):
        raising(answered(403, message="Access to this resource is disabled."))
        message, hint = refusal()
        assert message.startswith(f"{NAME} could not be downloaded: 403")
        assert PAGE in hint

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_hub_in_trouble(self, raising, status):
        raising(answered(status))
        message, hint = refusal()
        assert message.startswith(f"{NAME} could not be downloaded:")
        assert str(status) in message
        assert "try again" in hint

    def test_a_hub_in_trouble_and_nothing_in_the_cache(self, raising):
        error = hub.LocalEntryNotFoundError("Got: ...\nAn error happened")
        error.__cause__ = answered(503)
        raising(error)
        message, hint = refusal()
        assert "not in the cache" in message
        assert "503" in message
        assert "--model DIR" in hint

    @pytest.mark.parametrize(
        "error",
        [
            hub.LocalEntryNotFoundError("Cannot find an appropriate cached snapshot folder"),
            hub.IncompleteSnapshotError("The cached snapshot is incomplete", "/cache/snapshot"),
            hub.OfflineModeIsEnabled("Cannot reach https://huggingface.co: offline mode"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_offline_by_wish(self, raising, monkeypatch, error):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        raising(error)
        message, hint = refusal()
        assert "HF_HUB_OFFLINE forbids downloading it" in message
        assert "unset HF_HUB_OFFLINE" in hint
        assert f"`hf download {NAME}`" in hint

    @pytest.mark.parametrize(
        "error",
        [
            hub.LocalEntryNotFoundError("no snapshot"),
            ConnectionError("[Errno 111] Connection refused"),
            ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_offline_by_accident(self, raising, error):
        raising(error)
        message, hint = refusal()
        assert "https://huggingface.co does not serve it" in message
        assert "network" in hint

    @pytest.mark.parametrize(
        "error",
        [
            httpx2.ProxyError("407 Proxy Authentication Required"),
            httpx2.ReadTimeout("The read operation timed out"),
            httpx2.RemoteProtocolError("peer closed connection"),
            RuntimeError("Data processing error: CAS service error : connection closed"),
            hub.FileMetadataError("Distant resource does not have a Content-Length."),
            ValueError("Inconsistent sizes\nof a file"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_a_download_that_breaks_off(self, raising, error):
        raising(error)
        message, hint = refusal()
        assert message == f"{NAME} could not be downloaded: {str(error).splitlines()[0]}"
        assert "try again" in hint

    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS])
    def test_a_disk_that_does_not_take_it(self, raising, number, tmp_path):
        raising(OSError(number, "the disk says no", "/cache/blob"))
        message, hint = refusal()
        assert message == f"{NAME} could not be stored in {tmp_path / 'cache'}: the disk says no"
        assert "HF_HOME" in hint

    def test_a_bug_is_no_failure_of_the_hub(self, raising):
        raising(KeyError("a bug"))
        with pytest.raises(KeyError):
            find(NAME)


FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": b"first",
    "model-00002-of-00002.safetensors": b"second",
    "model.safetensors.index.json": b"{}",
    "tokenizer.json": b"{}",
    "preprocessor_config.json": b"{}",
    "processor_config.json": b"{}",
    "pytorch_model.bin": b"a pickle",
    "modeling.py": b"raise SystemExit",
    "tokenizer.model": b"",
    "weights/flax.msgpack": b"",
    "README.md": b"",
    ".gitattributes": b"",
}


class FakeHub:
    """Serves one repository, or fails at it; remembers what it was asked for."""

    def __init__(self):
        self.asked = []
        self.fail = lambda request: None

    def __call__(self, request):
        self.asked.append(request.url.path)
        if failure := self.fail(request):
            return failure
        if request.url.path == f"/api/models/{NAME}/revision/main":
            return httpx2.Response(200, json={"id": NAME, "sha": SHA, "siblings": []})
        if request.url.path == f"/api/models/{NAME}/tree/{SHA}":
            rows = [
                {"type": "file", "path": path, "size": len(data), "oid": f"{n:040}"}
                for n, (path, data) in enumerate(FILES.items())
            ]
            return httpx2.Response(200, json=rows)
        _, found, path = request.url.path.partition(f"/{NAME}/resolve/{SHA}/")
        if found and path in FILES:
            headers = {"X-Repo-Commit": SHA, "ETag": f'"{path}"'}
            return httpx2.Response(200, headers=headers, content=FILES[path])
        return httpx2.Response(404, headers={"X-Error-Code": "RepoNotFound"})


@pytest.fixture
def fake_hub():
    """huggingface_hub itself, with its client's calls answered here."""
    fake = FakeHub()
    hooks = {"request": [hf_request_event_hook]}
    set_client_factory(
        lambda: httpx2.Client(
            transport=httpx2.MockTransport(fake), event_hooks=hooks, follow_redirects=True
        )
    )
    yield fake
    set_client_factory(default_client_factory)


class TestADownload:
    def test_only_what_is_needed_is_asked_for(self, fake_hub, tmp_path):
        found = find(NAME)
        assert found.name == NAME
        assert found.revision == SHA
        assert found.label == f"{NAME}@{SHA}"
        assert found.folder.is_relative_to(tmp_path / "cache")
        needed = {path for path in FILES if any(Path(path).match(glob) for glob in NEEDED)}
        assert {file.name for file in found.folder.iterdir()} == needed
        assert needed == set(FILES) - {
            *("pytorch_model.bin", "modeling.py", "tokenizer.model"),
            *("weights/flax.msgpack", "README.md", ".gitattributes"),
        }
        fetched = {path.split("/resolve/")[1] for path in fake_hub.asked if "/resolve/" in path}
        assert fetched == {f"{SHA}/{path}" for path in needed}
        assert (found.folder / "model-00002-of-00002.safetensors").read_bytes() == b"second"

    def test_what_is_in_the_cache_serves_without_a_network(self, fake_hub, monkeypatch):
        found = find(NAME)
        fake_hub.asked.clear()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert find(NAME) == found
        assert find(NAME, SHA) == found
        assert fake_hub.asked == []

    def test_a_revision_is_passed_on(self, monkeypatch, tmp_path):
        calls = []

        def snapshot_download(name, **options):
            calls.append((name, options))
            return str(tmp_path / SHA)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert find(NAME, "bfloat16") == Checkpoint(NAME, tmp_path / SHA, SHA)
        assert calls == [(NAME, {"revision": "bfloat16", "allow_patterns": NEEDED})]

    def test_offline_without_a_cache(self, fake_hub, monkeypatch):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        assert "HF_HUB_OFFLINE forbids" in refusal()[0]
        assert fake_hub.asked in ([], [f"/api/models/{NAME}/revision/main"])

    def test_an_unknown_model(self, fake_hub):
        message, _ = refusal("org/misspelt")
        assert "the Hub has no model 'org/misspelt'" in message

    def test_a_gated_model_whose_page_opens_and_whose_files_do_not(self, fake_hub):
        def gated(request):
            if "/resolve/" in request.url.path:
                return httpx2.Response(401, headers={"X-Error-Code": "GatedRepo"})
            return None

        fake_hub.fail = gated
        assert "needs its licence accepted" in refusal()[0]

    def test_no_network(self, fake_hub):
        def unplugged(request):
            raise httpx2.ConnectError("[Errno -2] Name or service not known", request=request)

        fake_hub.fail = unplugged
        message, _ = refusal()
        assert "does not serve it: [Errno -2] Name or service not known" in message

    def test_a_proxy_that_refuses(self, fake_hub):
        def refused(request):
            raise httpx2.ProxyError("407 Proxy Authentication Required", request=request)

        fake_hub.fail = refused
        assert "407 Proxy Authentication Required" in refusal()[0]

    def test_a_hub_that_answers_with_an_error(self, fake_hub):
        fake_hub.fail = lambda request: httpx2.Response(500)
        message, _ = refusal()
        assert "500" in message
