"""pgcli search: hits of texts and images, near-duplicates, and their page."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

from pgcli.embedding import loader
from pgcli.images import ImageSpec
from tests.support.command import Command
from tests.support.galleries import CANARY, HOSTILE
from tests.support.parsed_page import content, copy
from tests.support.vectors import rows_of, unit, write_jsonl, write_parquet

VECTORS = unit(20)


class PretendEngine:
    """Embeds `row N` and images of grey N as the vector of row N."""

    device, kind = "cpu", "two_towers"
    spec = ImageSpec(8, Image.Resampling.BILINEAR)

    def __init__(self, label: str):
        self.label = label

    def encode_texts(self, texts: list[str], *, raw: bool = False) -> Any:
        return np.stack([VECTORS[int(text.lower().split()[1])] for text in texts])

    def encode(self, stream: Any) -> Any:
        for number, image in stream:
            yield number, SimpleNamespace(vector=VECTORS[int(image.pixels[0, 0, 0])])


@pytest.fixture(autouse=True)
def folder(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("towers", "others"):
        Path(name).mkdir()
    monkeypatch.setattr(
        loader, "load", lambda checkpoint, **options: PretendEngine(checkpoint.label)
    )


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    write_parquet(tmp_path / "v.parquet", rows_of(VECTORS, model="towers"), row_group_size=6)
    return "v.parquet"


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def best(row: int, count: int) -> list[str]:
    """The ids of the rows most similar to a row."""
    order = np.argsort(-(VECTORS.astype(float) @ VECTORS[row].astype(float)), kind="stable")
    return [f"{number}.jpg" for number in order[:count]]


def grey(name: str, level: int) -> str:
    Image.new("RGB", (9, 9), (level,) * 3).save(name)
    return name


# --- hits


def test_hits_of_texts_and_images_are_rows(vectors: str, cli: Command) -> None:
    image = grey("query.png", 7)
    code, out, err = cli("search", vectors, "--text", "row 3", "--image", image, "-k", "4")
    found = rows(out)
    assert code == 0
    assert list(found[0]) == ["query", "rank", "id", "image", "similarity"]
    assert [row["id"] for row in found] == best(3, 4) + best(7, 4)
    assert [row["query"] for row in found] == ["row 3"] * 4 + ["query.png"] * 4
    assert [row["rank"] for row in found] == [1, 2, 3, 4] * 2
    assert found[0] == {
        **{"query": "row 3", "rank": 1, "id": "3.jpg"},
        **{"image": "photos/3.jpg", "similarity": 1.0},
    }
    assert "8 hits of 2 queries among 20 vectors" in err


# --- the model


def test_classifiers_embed_no_queries(
    vectors: str, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PretendEngine, "kind", "classifier")
    code, _, err = cli("search", vectors, "--text", "row 1")
    assert code == 2
    assert "towers is an image classifier, which has no embeddings" in err


# --- near-duplicates


def test_duplicates_are_groups_of_rows(cli: Command) -> None:
    copies = VECTORS[[4, 9, 4]] + 0.01
    write_parquet(Path("v.parquet"), rows_of(np.concatenate([VECTORS, copies])))
    code, out, err = cli("search", "v.parquet", "--duplicates", "--min-similarity", "0.995")
    found = rows(out)
    assert code == 0
    assert list(found[0]) == ["group", "id", "image", "similarity"]
    assert [(row["group"], row["id"]) for row in found] == [
        *((1, "4.jpg"), (1, "20.jpg"), (1, "22.jpg")),
        *((2, "9.jpg"), (2, "21.jpg")),
    ]
    assert [row["similarity"] for row in found if row["id"] in ("4.jpg", "9.jpg")] == [1, 1]
    assert "2 groups of near-duplicates with 5 of 23 vectors" in err
    words = ("--duplicates", "--min-similarity", "0.995", "--format", "text")
    assert cli("search", "v.parquet", *words)[1].startswith("group 1: 3 members\n   1.000 4.jpg\n")
    words = ("--duplicates", "--min-similarity", "0.995", "-o", "groups.parquet")
    assert cli("search", "v.parquet", *words)[0] == 0
    settings = json.loads(parquet.read_schema("groups.parquet").metadata[b"pgcli"])
    assert settings["min_similarity"] == 0.995


def test_duplicates_begin_at_0_94(cli: Command) -> None:
    angles = np.arccos([1, 0.945, 1, 0.935]) + np.array([0, 0, 2, 2])
    pairs = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    write_jsonl(Path("v.jsonl"), rows_of(pairs))
    out = cli("search", "v.jsonl", "--duplicates")[1]
    assert [(row["id"], row["similarity"]) for row in rows(out)] == [
        ("0.jpg", 1.0),
        ("1.jpg", 0.945),
    ]


# --- the page


def photos(count: int) -> None:
    Path("photos").mkdir()
    for number in range(count):
        Image.new("RGB", (12, 9), (number, 0, 99)).save(f"photos/{number}.jpg")


def shown(name: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a page, and their prompts."""
    data = content(Path(name)).named("data")
    return data["rows"], [row["prompt"] for row in data["rows"]]


def test_page_shows_the_images_that_were_found(vectors: str, cli: Command) -> None:
    photos(20)
    words = (vectors, "--text", "row 3", "--image", grey("query.png", 7), "-k", "4")
    code, _, err = cli("search", *words, "--view", "page.html")
    found, queries = shown("page.html")
    assert code == 0
    assert queries == ["row 3"] * 4 + ["query.png"] * 5  # the image itself, and its hits
    assert [row["id"] for row in found] == [*best(3, 4), "query.png", *best(7, 4)]
    assert found[0]["scores"] == [{"text": "similarity", "cosine": 1.0}]
    assert "page.html: 9 rows" in err
    assert "not shown" not in err
    assert cli("search", *words, "--view", "page.html")[0] == 0  # a page is replaced


def test_images_of_several_files_of_vectors_are_their_own(cli: Command) -> None:
    for number in (0, 1):
        Path(str(number)).mkdir()
        Image.new("RGB", (12 + number, 9), (99, 0, 0)).save(f"{number}/a.jpg")
        rows = [
            {**row, "index": 0, "id": "a", "image": f"{number}/a.jpg"}
            for row in rows_of(VECTORS[:1])
        ]
        write_parquet(Path(f"{number}.parquet"), rows)
    assert cli("search", "0.parquet", "1.parquet", "--duplicates", "--view", "page.html")[0] == 0
    page = content(Path("page.html"))
    assert [copy(page, number).size[0] for number in (0, 1)] == [12, 13]


def test_foreign_text_is_text_on_the_page_and_terminal(cli: Command) -> None:
    made = rows_of(VECTORS[: len(HOSTILE)], model="towers")
    hostile = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    for row, text in zip(made, hostile, strict=True):
        row |= {"id": text, "image": text, "text": text}
    write_jsonl(Path("v.jsonl"), made)
    words = ("v.jsonl", "--text", "row 1", "-k", "99", "--view", "page.html")
    code, out, err = cli("search", *words, "--format", "text")
    page = Path("page.html").read_text()
    assert code == 0
    assert CANARY in page
    assert "<img src=x" not in page
    assert page.count("<script") == page.count("</script>") == 3
    assert not [text for text in (out, err, page) if set(text) & set("\x1b\r\u202e")]
    assert len(rows(cli("search", *words)[1])) == len(HOSTILE)


# --- what is refused


# --- the index
