"""Signed addresses: read with their signature, and shown, saved and compared without it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgcli.cli.job import loading
from pgcli.cli.main import main
from pgcli.cli.ui.sanitize_logs import sanitized_logs
from pgcli.remote.urls import without_credentials
from tests.support import pretend
from tests.support.awkward import drawing, encoded
from tests.support.misbehaving import Server

pytestmark = pytest.mark.usefixtures("clean_environment", "pretended")

SIGNED = {
    "aws": "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F20260101%2Feu%2Fs3&"
    "X-Amz-Date={n}&X-Amz-Expires=3600&X-Amz-SignedHeaders=host&X-Amz-Signature=SECRET{n}",
    "aws v2": "AWSAccessKeyId=SECRET&Expires={n}&Signature=SECRET{n}%3D",
    "google": "X-Goog-Algorithm=GOOG4&X-Goog-Date={n}&X-Goog-Signature=SECRET{n}",
    "azure": "sv=2024-11-04&se=2026-{n}&sr=b&sp=r&sig=SECRET{n}%3D",
    "cloudfront": "Policy=SECRET{n}&Signature=SECRET{n}&Key-Pair-Id=SECRET",
    "token": "access_token=SECRET{n}",
    "quoted": "X%2DAmz%2DSignature=SECRET{n}",
}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "load_model", pretend.load_model)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(encoded(drawing(), "PNG")) as one:
        yield one


@pytest.mark.parametrize("kind", SIGNED)
def test_signature_is_removed_and_other_parameters_stay(kind: str) -> None:
    first, second = (SIGNED[kind].format(n=n) for n in (1, 2))
    url = "https://h.example/a%20b.png"
    assert without_credentials(f"{url}?{first}") == url
    shown = without_credentials(f"{url}?size=8&{first}&versionId=3")
    assert shown == f"{url}?size=8&versionId=3"
    assert shown == without_credentials(f"{url}?size=8&{second}&versionId=3")
    assert without_credentials(f"see {url}?{first} and {url}?{second}.") == f"see {url} and {url}"


def test_address_without_a_signature_is_unchanged() -> None:
    for query in ("v=1&key=a/1.png", "expires=never&policy=x", "id=3&st=4&se=5", "q-factor=80", ""):
        assert without_credentials(f"https://h/x.png?{query}") == f"https://h/x.png?{query}"
    assert without_credentials("a?token=1") == "a?token=1"


def write(file: Path, server: Server, number: int) -> list[str]:
    """A manifest of the addresses, signed for the `number`-th time; the last one is forbidden."""
    names = [f"good.png?{query.format(n=number)}" for query in SIGNED.values()]
    urls = [f"{server.url}/{name}" for name in (*names, f"forbidden.png?sig=SECRET{number}")]
    file.write_text("".join(json.dumps({"image": url}) + "\n" for url in urls))
    return urls


def texts(folder: Path) -> str:
    """All that the runs have written, except for the manifest."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != "in.jsonl"]
    return "".join(f"{file}\n{file.read_text('utf-8', 'replace')}" for file in files)


OPTIONS = ["--allow-urls", "--allow-private-hosts", "--model", "demo"]


def test_addresses_that_are_signed_anew_resume(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, output = tmp_path / "in.jsonl", tmp_path / "rows.jsonl"
    words = ["caption", str(manifest), "-o", str(output), *OPTIONS]
    urls = write(manifest, server, 1)
    assert main([*words, "--limit", "3"]) == 0
    write(manifest, server, 2)
    assert main(words) == 3
    asked = [*urls[:3], *write(manifest, server, 2)[3:]]
    assert {server.url + path for path, _ in server.requests} == set(asked)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {row["image"] for row in rows[:-1]} == {f"{server.url}/good.png"}
    assert [row["error"] for row in rows] == [None] * len(SIGNED) + ["permission_denied"]
    shown = capsys.readouterr()
    assert "SECRET" not in texts(tmp_path) + shown.out + shown.err


def test_sources_and_ids_are_shown_without_signatures(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "rows.jsonl"
    for number in (1, 2):
        url = f"{server.url}/good.png?{SIGNED['azure'].format(n=number)}"
        words = ["caption", url, "-o", str(output), *OPTIONS, "--debug", "--on-error", "stop"]
        monkeypatch.setattr(sys, "argv", ["pgcli", *words])  # which the run's log and record have
        assert main(words) == 0
    row = json.loads(output.read_text())
    assert row["id"] == row["image"] == f"{server.url}/good.png"
    assert main(["caption", f"{server.url}/unknown.png?sig=SECRET", *OPTIONS, "--debug"]) == 3
    assert main(["caption", f"{server.url}/x.zip?sig=SECRET", *OPTIONS, "--debug"]) == 2
    manifest = tmp_path / "in.jsonl"
    manifest.write_text(json.dumps({"image": url, "id": url}))
    assert main(["caption", str(manifest), *OPTIONS]) == 0
    shown = capsys.readouterr()
    assert "SECRET" not in texts(tmp_path) + shown.out + shown.err


def test_page_and_export_read_signed_images_again(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    write(tmp_path / "in.jsonl", server, 1)
    assert main(["caption", str(tmp_path / "in.jsonl"), "-o", str(output), *OPTIONS]) == 3
    server.requests.clear()
    words = ["view", str(output), "-o", str(tmp_path / "page.html")]
    assert main([*words, "--allow-urls", "--allow-private-hosts"]) == 0
    assert all("SECRET" in path.replace("X%2D", "") for path, _ in server.requests)
    assert "SECRET" not in (tmp_path / "page.html").read_text()


def test_logs_of_libraries_have_no_signature(caplog: pytest.LogCaptureFixture) -> None:
    with sanitized_logs():
        logging.getLogger("any").error("GET %s", "https://h.example/a.png?sig=SECRET")
        try:
            raise OSError("https://h.example/a.png?sig=SECRET")
        except OSError:
            logging.getLogger("any").exception("failed")
    assert "GET https://h.example/a.png" in caplog.text
    assert "SECRET" not in caplog.text
