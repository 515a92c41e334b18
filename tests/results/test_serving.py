"""Tests the server of `pgcli view --serve`: its rows, the file of its edits, and attacks on it."""

import http.client
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.errors import OutputInUse, UsageError
from pgcli.output import result_target, write_result_file
from pgcli.results.image_locator import ImageLocator
from pgcli.results.serving import rows as serving_rows
from pgcli.results.serving.rows import ServedRows
from pgcli.results.serving.server import PageServer
from pgcli.rows import RowSchema, answer_digest
from tests.support.exporting import read_rows, saved
from tests.support.pages import HOSTILE, box, drawn, failed, hostile, row, sample_rows
from tests.support.runs import wait_until


@contextmanager
def serving(output: Path, reviewer: str | None = None) -> Iterator[PageServer]:
    """A server of the page of an output, in threads of this process."""
    server = PageServer(output, ImageLocator(images=str(output.parent)), None, reviewer)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        wait_until(lambda: server.rows.is_complete, seconds=30)
        yield server
    finally:
        server.shutdown()
        thread.join()


class Client:
    """Sends requests to a server as its page does, with changes."""

    def __init__(self, server: PageServer):
        self.server = server
        self.headers = {"X-Pgcli-Token": server.token, "Content-Type": "application/json"}

    def send(self, method: str, path: str, body: Any = None, **headers: Any) -> tuple[int, Any]:
        """The status and the content of a response; a header that is None is not sent."""
        sent = {**self.headers, **{name.replace("_", "-"): x for name, x in headers.items()}}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.server_port)) as line:
            line.putrequest(method, path, skip_host="Host" in sent)
            if data is not None:
                sent = {"Content-Length": str(len(data)), **sent}
            for name, value in sent.items():
                if value is not None:
                    line.putheader(name, value)
            line.endheaders(data)
            response = line.getresponse()
            content = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(content) if is_json else content

    def edit(self, number: int, row: dict[str, Any], **changes: Any) -> tuple[int, Any]:
        return self.send(
            "POST", "/edit", {"number": number, "digest": answer_digest(row), **changes}
        )


@pytest.fixture
def results(tmp_path) -> Path:
    drawn(tmp_path, 5)
    return saved(tmp_path / "rows.jsonl", sample_rows())


@pytest.fixture
def client(results) -> Iterator[Client]:
    with serving(results) as server:
        yield Client(server)


def lines(output: Path) -> list[dict[str, Any]]:
    return read_rows(output.with_name("rows.jsonl.edits.jsonl"))


# The file of the edits


def test_each_edit_is_a_line_and_the_last_one_of_a_row_applies(results, tmp_path, capsys):
    rows = sample_rows()
    with serving(results, reviewer="Ada") as server:
        client = Client(server)
        assert client.edit(0, rows[0], state="rejected") == (200, {})
        assert client.edit(0, rows[0], state="accepted", answer="a green cat")[0] == 200
        moved = {"label": "cow", "xmin": 1, "ymin": 2, "xmax": 9, "ymax": 9, "source": 1}
        assert client.edit(2, rows[2], state="accepted", boxes=[moved])[0] == 200
        assert client.edit(1, rows[1], state="rejected")[0] == 200
        assert client.send("POST", "/undo", {}) == (200, {"number": 1})
        assert [line["state"] for line in lines(results)] == [
            *("rejected", "accepted", "accepted", "rejected", "open")
        ]
        assert {line["reviewer"] for line in lines(results)} == {"Ada"}
    made = tmp_path / "new.jsonl"
    assert main(["apply", str(results), "-o", str(made), "--rows", "accepted"]) == 0
    assert "2 rows; 2 corrected; 4 not reviewed and dropped" in capsys.readouterr().err
    first, second = read_rows(made)
    assert (first["answer"], [one["label"] for one in second["boxes"]]) == ("a green cat", ["cow"])


def test_undo_goes_back_over_all_edits(client, results):
    rows = sample_rows()
    for state in ("accepted", "rejected"):
        for number in (0, 1):
            client.edit(number, rows[number], state=state)
    undone = [client.send("POST", "/undo", {})[1]["number"] for _ in range(5)]
    assert undone == [1, 0, 1, 0, None]
    assert [line["state"] for line in lines(results)][4:] == [
        "accepted",
        "accepted",
        "open",
        "open",
    ]


@pytest.mark.parametrize("end", [b'{"index": 1, "id', b'{"index"', b"\xff"])
def test_truncated_last_line_is_dropped(results, tmp_path, end):
    with serving(results) as server:
        Client(server).edit(0, sample_rows()[0], state="rejected")
    file = results.with_name("rows.jsonl.edits.jsonl")
    file.write_bytes(file.read_bytes() + end)
    assert main(["apply", str(results), "-o", str(tmp_path / "new.jsonl")]) == 0
    assert len(read_rows(tmp_path / "new.jsonl")) == 5
    with serving(results) as server:
        Client(server).edit(1, sample_rows()[1], state="accepted")
    assert [line["index"] for line in lines(results)] == [0, 1]


def test_complete_last_line_without_its_newline_is_kept(results):
    with serving(results) as server:
        Client(server).edit(0, sample_rows()[0], state="rejected")
    file = results.with_name("rows.jsonl.edits.jsonl")
    file.write_bytes(file.read_bytes().rstrip())
    with serving(results) as server:
        Client(server).edit(1, sample_rows()[1], state="accepted")
    assert [line["index"] for line in lines(results)] == [0, 1]


def test_edits_of_changed_or_missing_rows_are_listed_and_not_applied(results, tmp_path, capsys):
    rows = sample_rows()
    with serving(results) as server:
        for number in range(3):
            Client(server).edit(number, rows[number], state="accepted")
    saved(results, [rows[0], rows[1] | {"answer": "another"}])
    messages: list[Any] = []
    with closing(PageServer(results, ImageLocator(messages.append), None, None).socket):
        wait_until(lambda: len(messages) == 2, seconds=30)
    assert "the answer has changed: edit 2 ('00001.png'" in messages[0].text
    assert "the row is missing: edit 3 ('00002.png'" in messages[1].text
    assert main(["apply", str(results), "-o", str(tmp_path / "new.jsonl")]) == 3
    assert "not applied, the row is missing: edit 3" in capsys.readouterr().err


def test_nothing_is_written_without_an_edit(results):
    before = sorted(results.parent.iterdir())
    with serving(results) as server:
        assert Client(server).send("GET", "/row?number=0")[0] == 200
    assert sorted(results.parent.iterdir()) == before


def test_second_server_of_a_file_is_refused(client, results):
    with pytest.raises(OutputInUse, match="in use by another pgcli view --serve"):
        PageServer(results, ImageLocator(), None, None)
    run = [sys.executable, "-m", "pgcli", "view", str(results), "--serve", "--no-open"]
    ended = subprocess.run(run, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (12, b"")


def test_invalid_edits_are_refused_and_not_written(client, results):
    rows = sample_rows()
    outside = {"label": "cat", "xmin": 900, "ymin": 900, "xmax": 901, "ymax": 901}
    for number, of, changes in [
        (0, rows[1], {"state": "accepted"}),  # the digest of another answer
        (0, rows[0], {"state": "maybe"}),
        (0, rows[0], {"state": "accepted", "answer": 3}),
        (2, rows[2], {"state": "accepted", "answer": "text"}),
        (2, rows[2], {"state": "accepted", "boxes": [outside]}),
        (2, rows[2], {"state": "accepted", "boxes": [outside | {"source": 7}]}),
        (4, rows[4], {"state": "accepted"}),  # a failed row
        (6, rows[0], {"state": "accepted"}),
    ]:
        status, content = client.edit(number, of, **changes)
        assert (status, list(content)) == (400, ["error"]), changes
    assert lines(results) == []


# Rows


def many_rows(total: int) -> list[dict[str, Any]]:
    """Captions and boxes with every kind of value that the page filters and sorts by."""
    random.seed(7)
    rows = []
    for n in range(total):
        boxes = [box(random.choice("ab"), score=random.random()) for _ in range(n % 3)]
        numbers = {"logprob": -random.random(), "load_ms": random.choice([None, 1.0 * n])}
        rows.append(row(n, answer=f"word{n % 7} \u00c4rger {n}", boxes=boxes, **numbers))
        rows[-1] |= {"prompt": f"p{n % 2}", "task": "detect" if boxes else "ask"}
        if n % 11 == 5:
            rows[-1] = failed(n, random.choice(["missing", "timeout"])) | {"prompt": "p0"}
    return rows


QUERY = {"errors": False, "terms": [], "prompt": None, "code": None, "review": "", "labels": []}
QUERY |= {"sort": "order", "descending": False}


def found(rows: ServedRows, **changes: Any) -> list[int]:
    is_complete = False
    while not is_complete:
        states = np.zeros(len(rows), np.int8)
        order, is_complete = rows.order({**QUERY, **changes}, states)
    return order.tolist()


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.parquet", "rows/"])
def test_rows_are_filtered_searched_and_sorted(tmp_path, monkeypatch, form):
    monkeypatch.setattr(serving_rows, "FIRST_BYTES", 2000)
    monkeypatch.setattr(serving_rows, "BLOCK_BYTES", 9000)
    given, output = many_rows(120), tmp_path / form
    if form == "rows/":
        output.mkdir()
        for part, first in enumerate(range(0, 120, 50)):
            target = result_target(str(output / f"part-{part:06}.parquet"))
            write_result_file(target, given[first : first + 50], RowSchema())
    else:
        write_result_file(result_target(str(output)), given, RowSchema())
    rows = ServedRows(output)
    rows.index(lambda block, index: None)
    assert [rows.row(n)["answer"] for n in range(120)] == [one["answer"] for one in given]
    assert [answer_digest(rows.row(n)) for n in range(120)] == [*map(answer_digest, given)]
    whole = [n for n, one in enumerate(given) if one["error"] is None]

    def those(claim: Any) -> list[int]:
        return [n for n in whole if claim(given[n])]

    assert found(rows) == whole
    assert found(rows, descending=True) == whole[::-1]
    assert found(rows, terms=["\u00e4RGER 119"]) == [119]  # the last row alone
    assert found(rows, terms=["word3", "p1"]) == those(
        lambda one: "word3" in one["answer"] and one["prompt"] == "p1"
    )
    assert found(rows, prompt="p1") == those(lambda one: one["prompt"] == "p1")
    assert found(rows, labels=["b"]) == those(lambda one: "b" in [x["label"] for x in one["boxes"]])
    assert found(rows, review="accepted") == []
    assert found(rows, review="open") == whole
    for code in ("missing", "timeout"):
        numbers = [n for n, one in enumerate(given) if one["error"] == code]
        assert found(rows, errors=True, code=code) == numbers
    by_logprob = sorted(whole, key=lambda n: given[n]["logprob"])
    assert found(rows, sort="logprob") == by_logprob
    assert found(rows, sort="logprob", descending=True) == by_logprob[::-1]
    loaded = [n for n in whole if given[n]["load_ms"] is not None]
    assert found(rows, sort="load")[: len(loaded)] == loaded  # nulls are last
    confident = [n for n in whole if given[n]["boxes"]]
    confident.sort(key=lambda n: max(x["confidence"] for x in given[n]["boxes"]))
    assert found(rows, sort="confidence")[: len(confident)] == confident
    facts = rows.facts()
    assert facts["total"] == facts["errors"] + facts["reviewable"] == 120
    assert dict(facts["labels"])["a"] == len(those(lambda one: '"a"' in json.dumps(one["boxes"])))


def test_reviewed_rows_are_filtered_by_their_review(client):
    rows = sample_rows()
    client.edit(0, rows[0], state="accepted")
    client.edit(1, rows[1], state="accepted", answer="x")
    client.edit(2, rows[2], state="rejected")
    for review, numbers in [
        ("open", [3]), ("accepted", [0, 1]), ("corrected", [1]), ("rejected", [2])
    ]:  # fmt: skip
        states = client.server.log.states(6)
        order, _ = client.server.rows.order({**QUERY, "review": review}, states)
        assert order.tolist() == numbers


def test_kept_text_columns_are_searched(tmp_path):
    given = [row(n) | {"sku": f"A-{n}", "price": n} for n in range(3)]
    rows = ServedRows(saved(tmp_path / "rows.jsonl", given))
    rows.index(lambda block, index: None)
    assert found(rows, terms=["a-2"]) == [2]
    assert found(rows, terms=["sku"]) == found(rows, terms=["null"]) == []  # names are no text


def test_rows_of_other_programs_that_do_not_fit_are_refused(tmp_path):
    file = saved(tmp_path / "rows.jsonl", [row(0), row(1, answer="x") | {"logprob": "high"}])
    with pytest.raises(UsageError, match="cannot be read"):
        ServedRows(file).index(lambda block, index: None)
    with pytest.raises(UsageError, match="no rows yet"):
        ServedRows(saved(tmp_path / "empty.jsonl", []))
    for arguments in (["-"], [str(file), str(file)]):
        assert main(["view", *arguments, "--serve"]) == 2


def test_hostile_rows_are_served_as_data(tmp_path):
    drawn(tmp_path, 1)
    rows = [one for one in hostile() if "\ud800" not in one["id"]]  # which is no text in Arrow
    for one in rows:
        one.pop("choices", None)
        one["boxes"] = []
    with serving(saved(tmp_path / "rows.jsonl", [row(0), *rows])) as server:
        client = Client(server)
        for number in range(len(rows)):
            status, content = client.send("GET", f"/row?number={number}")
            assert status == 200
            assert content["row"]["id"]
        assert server.page.count(b"<script>") == 1
        assert not any(text.encode() in server.page for text in HOSTILE[:5])


# Attacks


def test_hostile_images_have_their_error_on_their_cards(tmp_path):
    drawn(tmp_path, 4)
    (tmp_path / "00001.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100)
    Image.new("1", (20_000, 20_000)).save(tmp_path / "00002.png")
    results = saved(tmp_path / "rows.jsonl", [row(n) for n in range(5)])
    (tmp_path / "secret.txt").write_text("secret")
    saved(results, [*(row(n) for n in range(5)), row(5, image="secret.txt", id="secret.txt")])
    with serving(results) as server:
        client = Client(server)
        images = [client.send("GET", f"/row?number={n}")[1]["image"] for n in range(6)]
    assert [image[3:4] for image in images] == [
        [], ["decode_failed"], ["too_many_pixels"], [], ["missing"], ["not_an_image"]
    ]  # fmt: skip
    assert images[0][1:] == [40, 30]


REQUESTS: dict[str, tuple[int, str, str, dict[str, Any]]] = {
    "page without a token": (403, "GET", "/", {}),
    "page with another token": (403, "GET", "/?token=x", {}),
    "token of letters that are not ASCII": (403, "GET", "/?token=%C3%A4", {}),
    "no token": (403, "GET", "/state?since=0&total=0", {"X_Pgcli_Token": None}),
    "token in the address": (403, "GET", "/state?token={token}", {"X_Pgcli_Token": None}),
    "another token": (403, "GET", "/row?number=0", {"X_Pgcli_Token": "x"}),
    "another host": (403, "GET", "/?token={token}", {"Host": "evil.example"}),
    "another host with this port": (403, "GET", "/row?number=0", {"Host": "evil.example:{port}"}),
    "another port": (403, "GET", "/row?number=0", {"Host": "127.0.0.1:1"}),
    "no host": (403, "GET", "/row?number=0", {"Host": None}),
    "this host by name": (200, "GET", "/row?number=0", {"Host": "localhost:{port}"}),
    "a form": (404, "POST", "/edit", {"Content_Type": "application/x-www-form-urlencoded"}),
    "a form as text": (404, "POST", "/edit", {"Content_Type": "text/plain"}),
    "a post without a token": (403, "POST", "/edit", {"X_Pgcli_Token": None}),
    "an edit as GET": (404, "GET", "/edit?number=0&state=accepted", {}),
    "a row as POST": (404, "POST", "/row?number=0", {}),
    "no length": (404, "POST", "/edit", {"Content_Length": None}),
    "a negative length": (404, "POST", "/edit", {"Content_Length": "-1"}),
    "a huge length": (404, "POST", "/edit", {"Content_Length": str(2**40)}),
    "another method": (501, "PUT", "/edit", {}),
    "a file": (404, "GET", "/rows.jsonl", {}),
    "a path": (404, "GET", "/../../../../etc/passwd", {}),
    "an encoded path": (404, "GET", "/%2e%2e/%2e%2e/etc/passwd", {}),
    "another server's address": (403, "GET", "http://evil.example/etc/passwd", {}),
    "two slashes": (404, "GET", "//evil.example/state", {}),
    "a row before the first": (400, "GET", "/row?number=-1", {}),
    "a row after the last": (400, "GET", "/row?number=6", {}),
    "a huge number": (400, "GET", f"/row?number={'9' * 5000}", {}),
    "a path as a number": (400, "GET", "/row?number=..%2f..%2fetc%2fpasswd", {}),
    "no number": (400, "GET", "/row", {}),
    "no query": (400, "GET", "/order?query=[1]", {}),
    "half a query": (400, "GET", "/order?query={}", {}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_of_others_and_for_other_things_are_refused(client, results, name):
    status, method, path, headers = REQUESTS[name]
    words = {"{token}": client.server.token, "{port}": str(client.server.server_port)}
    for placeholder, word in words.items():
        path = path.replace(placeholder, word)
        headers = {k: v and v.replace(placeholder, word) for k, v in headers.items()}
    edit = {"number": 0, "digest": answer_digest(sample_rows()[0]), "state": "accepted"}
    assert client.send(method, path, edit if method == "POST" else None, **headers)[0] == status
    assert lines(results) == []
    assert client.edit(0, sample_rows()[0], state="accepted")[0] == 200  # it serves on


def test_responses_forbid_frames_sniffing_and_other_scripts(client):
    line = http.client.HTTPConnection("127.0.0.1", client.server.server_port)
    with closing(line):
        line.request("GET", f"/?token={client.server.token}")
        headers = line.getresponse().headers
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"].startswith("'sha256-")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    assert client.server.server_address[0] == "127.0.0.1"


@pytest.mark.slow
def test_ten_thousand_requests_end_nothing(client):
    line = http.client.HTTPConnection("127.0.0.1", client.server.server_port)
    with closing(line):
        for number in range(10_000):
            headers = client.headers if number % 2 else {}
            line.request("GET", "/state?since=0&total=6", headers=headers)
            response = line.getresponse()
            assert response.status == (200 if number % 2 else 403)
            response.read()
    assert threading.active_count() < 40
    assert client.edit(0, sample_rows()[0], state="accepted")[0] == 200


def test_full_disk_is_reported_and_leaves_whole_lines(client, results, monkeypatch):
    from pgcli.results.serving import edits_log

    def write(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[:90])

    real = edits_log.os.write
    monkeypatch.setattr(edits_log.os, "write", write)
    status, content = client.edit(0, sample_rows()[0], state="accepted")
    assert (status, "No space left" in content["error"]) == (500, True)
    monkeypatch.undo()
    assert lines(results) == []


def test_labels_of_other_programs_have_colours_of_their_own(tmp_path):
    """As those of a run, whose objects are known."""
    drawn(tmp_path, 1)
    boxes = [box(label, 0, 0, 5, 5) for label in ("person", "helmet", "cat", "cup")]
    output = Path(saved(tmp_path / "rows.jsonl", [row(0) | {"boxes": boxes}]))
    with serving(output) as server:
        _, state = Client(server).send("GET", "/state?since=0&total=0")
    assert len({colour for _, _, colour, _ in state["facts"]["labels"]}) == 4
