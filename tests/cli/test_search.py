"""pgcli search: hits of texts and images, near-duplicates, and their page."""

from __future__ import annotations

import json
import shutil
import sys
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


def test_hits_below_the_least_similarity_are_left_out(vectors: str, cli: Command) -> None:
    out = cli("search", vectors, "--text", "row 1", "--min-similarity", "0.3", "-k", "99")[1]
    scores = VECTORS.astype(float) @ VECTORS[1].astype(float)
    assert len(rows(out)) == np.count_nonzero(scores >= 0.3)


def test_vectors_of_any_length_are_searched_as_normalised(cli: Command) -> None:
    write_parquet(Path("v.parquet"), rows_of(VECTORS * 2, model="towers"))
    _, out, err = cli("search", "v.parquet", "--text", "row 3", "-k", "3")
    assert [row["id"] for row in rows(out)] == best(3, 3)
    assert "20 vectors were not normalised" in err


# --- the model


def test_another_folder_is_used_with_a_remark(vectors: str, cli: Command) -> None:
    code, _, err = cli("search", vectors, "--text", "row 1", "--model", "./others")
    assert code == 0
    assert "the vectors are of towers; ./others has to be the same model" in err


def test_vectors_of_another_size_than_the_queries_are_refused(cli: Command) -> None:
    write_jsonl(Path("v.jsonl"), rows_of(unit(4, 5), model=None))
    code, _, err = cli("search", "v.jsonl", "--text", "row 1")
    assert code == 2
    assert "makes vectors of 6 numbers, and those to search have 5" in err
    assert "the queries are embedded by demo-towers" in err


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


def test_page_names_images_that_are_missing(vectors: str, cli: Command) -> None:
    code, _, err = cli("search", vectors, "--text", "row 3", "-k", "2", "--view", "page.html")
    assert code == 0
    assert "2 images are not shown" in err
    assert "The image does not exist any more." in Path("page.html").read_text()
    Path("moved/photos").mkdir(parents=True)
    shutil.copy(grey("3.png", 3), "moved/photos/3.jpg")
    words = ("--text", "row 3", "-k", "1", "--view", "page.html", "--images", "moved")
    assert "not shown" not in cli("search", vectors, *words)[2]


def test_page_of_duplicates_has_a_prompt_for_each_group(cli: Command) -> None:
    photos(4)
    write_parquet(Path("v.parquet"), rows_of(VECTORS[[0, 1, 0, 1]]))
    assert cli("search", "v.parquet", "--duplicates", "--view", "page.html")[0] == 0
    assert shown("page.html")[1] == ["group 1", "group 1", "group 2", "group 2"]
    assert "<title>Near-duplicates in v.parquet</title>" in Path("page.html").read_text()
    write_parquet(Path("w.parquet"), rows_of(VECTORS[:2]))
    code, _, err = cli("search", "w.parquet", "--duplicates", "--view", "b.html")
    assert (code, Path("b.html").exists()) == (0, False)
    assert "nothing was found: b.html is not written" in err


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


@pytest.mark.parametrize("name", ["found.jsonl", "found.parquet"])
@pytest.mark.parametrize("words", ["--text|row 3|--text|row 0|-k|2", "--duplicates"])
def test_view_makes_a_page_of_the_rows(vectors: str, cli: Command, name: str, words: str) -> None:
    photos(20)
    write_parquet(Path(vectors), rows_of(VECTORS[[0, 1, 2, 3, 0, 3]], model="towers"))
    cli("search", vectors, *words.split("|"), "-o", name, "--view", "direct.html")
    assert cli("view", name)[0] == 0
    (direct, titles), (page, names) = shown("direct.html"), shown("found.html")
    assert len(set(names)) == 2
    assert (titles, [row["scores"] for row in direct]) == (names, [row["scores"] for row in page])


# --- what is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "nothing to search"),
        ("--text a --duplicates", "--duplicates compares the vectors with each other"),
        ("--text a --revision main", "no model is named that has revisions"),
        ("--text=", "a text is empty"),
        ("--image none.png", "none.png is not an image file"),
        ("--image v.parquet", "v.parquet: "),
        ("--text a -k 0", "'0' is not a whole number of 1 or more"),
        ("--text a --min-similarity 1.5", "'1.5' is not a number of -1 to 1"),
        ("--text a -o hits.txt", "does not choose a format"),
        ("--text a -o hits/", "is the name of a folder"),
        ("--text a --view -", "not written to standard output"),
        ("--text a --view v.parquet --overwrite", "v.parquet is an input"),
        ("--text a -o ./v.parquet --overwrite", "v.parquet is an input"),
        ("--text a -o a.jsonl --view a.jsonl", "--view a.jsonl is not a file of its own"),
        ("--text a --view p.html --images none", "none is not a folder"),
    ],
)
def test_wrong_options_exit_with_2(vectors: str, cli: Command, words: str, message: str) -> None:
    code, out, err = cli("search", vectors, *words.split())
    assert (code, out) == (2, "")
    assert message in err


def test_output_that_cannot_be_written_exits_with_14(
    vectors: str, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet.ParquetWriter, "write_table", full)
    code, _, err = cli("search", vectors, "--text", "row 1", "-o", "hits.parquet")
    assert code == 14
    assert "cannot write hits.parquet: No space left on device" in err
    assert sorted(path.name for path in Path().iterdir()) == ["others", "towers", "v.parquet"]


# --- the index


def test_index_gives_the_same_rows(vectors: str, cli: Command) -> None:
    pytest.importorskip("faiss", reason="a development dependency")
    words = (vectors, "--text", "row 3", "--text", "row 8", "-k", "4")
    exact = rows(cli("search", *words)[1])
    code, out, err = cli("search", *words, "--index")
    assert (code, [row["id"] for row in rows(out)]) == (0, [row["id"] for row in exact])
    assert np.allclose(*([one["similarity"] for one in found] for found in (rows(out), exact)))
    assert "v.parquet.faiss is not there: building it" in err
    assert "8 hits of 2 queries among 20 vectors" in err
    again, err = cli("search", *words, "--index")[1:]
    assert again == out
    assert "building" not in err
    groups = (vectors, "--duplicates", "--min-similarity", "0.8")
    assert cli("search", *groups, "--index")[1] == cli("search", *groups)[1]


def test_index_without_faiss_names_the_extra(
    vectors: str, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    code, _, err = cli("search", vectors, "--text", "row 3", "--index")
    assert code == 2
    assert "pip install 'paligemma-cli[index]'" in err
