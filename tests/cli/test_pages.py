"""ColPali on the command line: PDF files in, vectors of pages, and the right page out."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageDraw

from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.main import main
from pgcli.images import ImageLimits, decode
from pgcli.records import Item
from pgcli.towers.pages import open_encoder
from tests.support.exporting import read_rows
from tests.support.tiny_colpali import write_adapter, write_hf, write_layout

pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed")
VECTORS = 29  # of a page of the tiny model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_hf(tmp_path_factory.mktemp("colpali") / "model"))


def sheet(number):
    image = Image.new("RGB", (300, 424), "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 20 + 10 * number, 280, 60 + 10 * number), fill=(9 * number % 256, 80, 160))
    draw.text((30, 200), f"page {number}", fill="black")
    return image


def write_pdf(file, pages):
    first, *others = map(sheet, pages)
    file.parent.mkdir(exist_ok=True)
    first.save(file, save_all=True, append_images=others)
    return file


@pytest.fixture(autouse=True)
def reports():
    """Two PDFs of five pages, and a damaged one."""
    write_pdf(Path("reports/a.pdf"), range(3))
    write_pdf(Path("reports/b.pdf"), range(3, 5))
    Path("reports/c.pdf").write_bytes(b"%PDF-1.7 damaged")


def run(*words, code=0):
    assert main([*map(str, words), "--device", "cpu", "--quiet"]) == code


def embed(model, output, *words, code=3):
    run("embed", "reports", "-o", output, "--model", model, "--workers", 0, *words, code=code)
    return pq.read_table(output)


def vectors(table):
    return [None if v is None else np.array(v, np.float32) for v in table["embedding"].to_pylist()]


IDS = [*(f"reports/a.pdf/{n}" for n in (1, 2, 3)), "reports/b.pdf/1", "reports/b.pdf/2"]


def test_pages_of_pdfs_become_rows_of_vectors(model):
    table = embed(model, "pages.parquet")
    assert str(table.schema.field("embedding").type) == (
        "list<element: fixed_size_list<element: halffloat>[128]>"
    )
    assert table["id"].to_pylist() == [*IDS, "reports/c.pdf/1"]
    assert table["error"].to_pylist() == [None] * 5 + ["decode_failed"]
    engine = open_encoder(Checkpoint("m", Path(model)), device="cpu")
    decoded = [
        decode(Item(n, "", "", f"reports/{n}.pdf", span=(1, 0)), engine.spec, ImageLimits())
        for n in "ab"
    ]
    expected = [encoded.vector for _, encoded in engine.encode(enumerate(decoded))]
    found = vectors(table)
    for row, page in zip((0, 3), expected, strict=True):
        assert found[row].shape == (VECTORS, 128)
        np.testing.assert_array_equal(found[row], page.astype(np.float16))
    settings = json.loads(pq.read_schema("pages.parquet").metadata[b"pgcli"])
    assert settings["page_prompt"] == "Describe the image."
    assert settings["question_prefix"] == "Question: "
    assert main(["check", "pages.parquet"]) == 0


def test_the_page_nearest_to_a_text_is_found_and_shown(model, capsys):
    table = embed(model, "pages.parquet")
    texts = ["a blue bar", "page 3"]
    asked = [word for text in texts for word in ("--text", text)]
    run("search", "pages.parquet", *asked, "-k", 2, "-o", "hits.jsonl", "--view", "hits.html")
    engine = open_encoder(Checkpoint("m", Path(model)), device="cpu")
    pages = vectors(table)[:5]
    expected = []
    for question in engine.encode_questions(texts):
        scores = [float((question @ page.T).max(axis=1).sum()) for page in pages]
        order = np.argsort(scores)[::-1][:2]
        expected += [(IDS[row], pytest.approx(scores[row], rel=1e-5)) for row in order]
    rows = read_rows("hits.jsonl")
    assert [(row["id"], row["similarity"]) for row in rows] == expected
    assert [row["rank"] for row in rows] == [1, 2, 1, 2]
    page = Path("hits.html").read_text()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [q["text"] for q in data["questions"]] == texts
    assert data["questions"][0]["words"] == ["a", "blue", "bar"]
    hit = data["questions"][0]["hits"][0]
    assert hit["image"][1:] == [1062, 1500]
    assert len(hit["maps"]) == 4 * -(-4 * data["grid"] ** 2 // 3)


def test_the_page_of_rows_shows_pages_without_their_vectors(model):
    embed(model, "pages.parquet")
    assert main(["view", "pages.parquet", "-o", "rows.html"]) == 0
    text = Path("rows.html").read_text()
    assert "the vectors of a page" in text
    assert '"128:' not in text


def test_maps_and_the_other_vectors_give_the_score(model):
    """The largest of a map's products and of those with the prompt's vectors, summed over words."""
    from pgcli.towers.maps import Word, word_maps

    engine = open_encoder(Checkpoint("m", Path(model)), device="cpu")
    (question,) = engine.encode_questions(["a blue bar"])
    page = vectors(embed(model, "pages.parquet"))[1]
    count = engine.grid**2
    own = [Word(str(n), (n,)) for n in range(len(question))]
    maps = word_maps(own, question, page, engine.grid)
    assert maps.shape == (1 + len(question), count)
    products = np.maximum(maps[1:].max(axis=1) / 255, (question @ page[count:].T).max(axis=1))
    exact = (question @ page.T).max(axis=1).sum()
    assert products.sum() == pytest.approx(exact, abs=len(question) / 255)
    row, column = divmod(int((page[:count] @ question[3]).argmax()), engine.grid)
    assert maps[4].reshape(engine.grid, engine.grid)[row, column] == maps[4].max()
    assert (maps[0] == maps[1:].max(axis=0)).all()


def test_merged_vectors_are_fewer_and_searched_without_maps(model, capsys):
    whole, table = vectors(embed(model, "all.parquet")), embed(model, "few.parquet", "--pool", 3)
    assert [len(v) for v in vectors(table)[:5]] == [VECTORS // 3] * 5
    assert len(whole[0]) == VECTORS
    assert (
        main(["search", "few.parquet", "--text", "bar", "--view", "h.html", "-o", "h.jsonl"]) == 0
    )
    assert "merged with --pool" in capsys.readouterr().err
    run("embed", "reports", "-o", "few.parquet", "--model", model, code=13)  # another run


def test_failed_pages_are_embedded_again_and_new_ones_appended(model):
    Path("scans").mkdir()
    for number in range(3):
        sheet(number).save(f"scans/{number}.png")
    Path("scans/1.png").write_bytes(b"no image")
    words = ("embed", "scans", "-o", "pages.parquet", "--model", model, "--workers", 0)
    run(*words, code=3)
    sheet(1).save("scans/1.png")
    run(*words, "--retry-errors")
    sheet(3).save("scans/3.png")
    run(*words)
    again = pq.read_table("pages.parquet")
    run(*words, "--overwrite")
    table = pq.read_table("pages.parquet")
    assert again.schema.field("embedding").type == table.schema.field("embedding").type
    assert again["id"].to_pylist() == [f"{n}.png" for n in range(4)]
    for mine, other in zip(vectors(again), vectors(table), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-3)


def test_files_of_pages_are_merged_and_compared(model, capsys):
    table = embed(model, "a.parquet")
    embed(model, "b.parquet")
    assert main(["diff", "a.parquet", "b.parquet"]) == 0
    assert main(["merge", "a.parquet", "b.parquet", "-o", "merged.parquet"]) == 3
    merged = pq.read_table("merged.parquet")
    assert merged["embedding"].to_pylist() == table["embedding"].to_pylist()
    assert merged.schema.field("embedding").type == table.schema.field("embedding").type
    assert main(["merge", "a.parquet", "-o", "merged.jsonl"]) == 2
    assert "1.3 MB a page" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["-", "pages.jsonl"])
def test_json_lines_are_refused_with_their_size(model, output, capsys):
    run("embed", "reports", "--model", model, "-o", output, code=2)
    assert "1.3 MB a page" in capsys.readouterr().err


def test_options_that_do_not_apply_to_pages_are_refused(model, capsys):
    embed(model, "pages.parquet")
    for words in (["--duplicates"], ["--image", "x.png"], ["--text", "a", "--min-similarity", 0.5]):
        Path("x.png").touch()
        run("search", "pages.parquet", *words, code=2)
        assert "does not apply to the vectors of pages" in capsys.readouterr().err
    run("embed", "--text", "a", "--model", model, "-o", "t.parquet", code=2)
    assert "ColPali, which cannot embed texts" in capsys.readouterr().err
    run("caption", "reports/a.pdf", "--model", model, code=2)
    run("search", "pages.parquet", "--text", "a", "--model", "demo-towers", code=2)


def test_vectors_of_another_prompt_form_are_not_searched(model, tmp_path, capsys):
    embed(model, "pages.parquet")
    other = write_hf(tmp_path / "other")
    image = json.loads((other / "preprocessor_config.json").read_text())
    settings = {"query_prefix": "Query: ", "image_processor": image}
    (other / "processor_config.json").write_text(json.dumps(settings))
    run("search", "pages.parquet", "--text", "a", "--model", other, code=2)
    assert "'Query: '" in capsys.readouterr().err


@pytest.mark.slow
def test_an_adapter_embeds_and_is_found_again_by_search(tmp_path):
    base = write_layout(tmp_path / "base", "merged")
    write_adapter(tmp_path / "adapter", published=True)
    words = ("--adapter", tmp_path / "adapter")
    adapted = vectors(embed(base, "adapted.parquet", *words))
    assert not np.allclose(adapted[0], vectors(embed(base, "plain.parquet"))[0], atol=0.01)
    run("search", "adapted.parquet", "--text", "a", "-k", 1, "-o", "found.jsonl")
    adapter = Checkpoint("a", tmp_path / "adapter")
    engine = open_encoder(Checkpoint("m", base), adapter=adapter, device="cpu")
    (question,) = engine.encode_questions(["a"])
    scores = [float((question @ page.T).max(axis=1).sum()) for page in adapted[:5]]
    (hit,) = read_rows("found.jsonl")
    assert hit["similarity"] == pytest.approx(max(scores), rel=1e-5)


def test_a_dry_run_says_the_space_that_vectors_need(model, capsys):
    assert main(["embed", "reports", "-o", "pages.parquet", "--model", model, "--dry-run"]) == 0
    assert "disk: 4.1 kB a page, 24.6 kB in all" in capsys.readouterr().err


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_same_vectors(model):
    """Through engine processes and decoding processes; the folder has its parts."""
    write_pdf(Path("reports/d.pdf"), range(40))
    embed(model, "whole.parquet")
    command = [sys.executable, "-m", "pgcli", "embed", "reports", "-o", "pages/", "--model", model]
    command += ["--device", "cpu", "--quiet", "--workers", "1", "--rows-per-file", "8"]
    command += ["--batch-size", "1", "--dtype", "float32"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 120
    while not [*Path("pages").glob("*.parquet")] and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    killed = process.wait() == -signal.SIGKILL
    assert subprocess.run(command, env=environment, check=False).returncode == 3
    assert killed, "the run ended before it was killed"
    parts = pq.read_table("pages")
    whole = pq.read_table("whole.parquet")
    assert parts["id"].to_pylist() == whole["id"].to_pylist()
    assert main(["check", "pages"]) == 0
    for mine, other in zip(vectors(parts), vectors(whole), strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            np.testing.assert_allclose(mine, other, rtol=0, atol=1e-3)
    run("search", "pages", "--text", "page 3", "-k", 3, "-o", "hits.jsonl")
    run("search", "whole.parquet", "--text", "page 3", "-k", 3, "-o", "all.jsonl")
    assert [r["id"] for r in read_rows("hits.jsonl")] == [r["id"] for r in read_rows("all.jsonl")]
