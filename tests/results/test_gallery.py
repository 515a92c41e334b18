"""Tests `pgcli view`: a page with rows as text and thumbnails of their images."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.images import ImageLimits, load_thumbnail
from pgcli.records import Item
from pgcli.results import gallery
from pgcli.results.gallery import ThumbnailMaker, default_side, render_gallery
from pgcli.results.pages import Cards, ResultFile, group_cards, page_row
from pgcli.rle import encode_mask_parts
from tests.support import pretend
from tests.support.exporting import saved
from tests.support.pages import (
    CANARY,
    HOSTILE,
    Parsed,
    box,
    content,
    copy,
    drawn,
    failed,
    hostile,
    row,
)
from tests.support.runs import EXAMPLES, MANY, ROWS, finished, started, wait_until


def made(rows: list[dict[str, Any]], title: str = "rows", name: str = "rows.jsonl") -> str:
    cards = Cards()
    cards.add(ResultFile(name, [("sources", name)], note=name), rows)
    entries = [json.dumps([0, None, None, "missing", title]) for _ in cards.images]
    return "".join(render_gallery(cards.data(), entries, title=title))


def viewed(*arguments: object) -> int:
    return main(["view", *map(str, arguments)])


@pytest.fixture
def results(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    drawn(tmp_path, 3)
    return saved(tmp_path / "rows.jsonl", [row(0), row(1, boxes=[box("cat")]), failed(2)])


# Hostile rows


def test_no_row_adds_an_element_or_an_attribute():
    plain = Parsed(made([row(n) for n in range(2 * len(HOSTILE))]))
    for text in HOSTILE:
        evil = Parsed(made(hostile(), title=text, name=text))
        assert evil.tags == plain.tags
        assert not [name for _, names in evil.tags for name in names if name.startswith("on")]


def test_hostile_text_is_in_the_page_as_data_only():
    text = made(hostile())
    rows = Parsed(text).named("data")["rows"]
    assert [shown["answer"] for shown in rows[::2]][:8] == list(HOSTILE[:8])
    outside = re.sub(r"<script type=.*?</script>", "", text, flags=re.DOTALL)
    assert CANARY not in outside
    assert rows[20]["id"] == r"name\u202egnp.exe"  # bidirectional controls are escaped
    assert rows[22]["answer"] == "one\nline and\nanother\\x1b[2J"
    assert rows[24]["id"] == "\ufffd half"


def test_the_policy_allows_this_script_alone_and_no_requests():
    parsed = Parsed(made([row()]))
    names = [tag for tag, _ in parsed.tags]
    policy = parsed.attributes[names.index("meta") + 1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    reported = dict(part.split(" ", 1) for part in str(policy["content"]).split("; "))
    assert reported["default-src"] == reported["base-uri"] == reported["form-action"] == "'none'"
    assert reported["img-src"] == "data:"
    digests = {
        kind: f"'sha256-{b64encode(sha256(parsed.texts[index].encode()).digest()).decode()}'"
        for kind, index in (("style", names.index("style")), ("script", len(names) - 2))
    }
    assert reported["style-src"] == digests["style"]
    assert reported["script-src"] == digests["script"]


def test_columns_are_as_the_rows_have_them():
    cards = Cards()
    strange = [
        row(0, boxes=[box("a\x1b"), {"label": "c", "xmin": float("nan")}, 3], logprob=0.123456789),
        row(
            1,
            boxes=[box("b", 10**400, 0, 1, 1)],
            **{"$digest": "x", "$price": 2},
            width="9",
            tokens=10**400,
            answer=[1],
            prompt=None,
            more={"deep": ["\x07"]},
        ),
        {"id": "e", "image": "e.png", "embedding": [0.5] * 2000, "error": None},
    ]
    cards.add(ResultFile("rows"), strange)
    first, second, third = cards.data()["rows"]
    assert first["boxes"][0]["label"] == r"a\x1b"
    assert first["boxes"][1:] == [{"label": "c", "xmin": None}, 3]
    assert (first["logprob"], "error" in first) == (0.123457, False)
    assert ("width" in second, "tokens" in second, second["answer"]) == (False, False, "[1]")
    assert (second["$digest"] != "x", second["$price"]) == (True, 2)
    assert (second["more"], "prompt" in second) == ({"deep": [r"\x07"]}, False)
    assert (third["answer"], "embedding" in third) == ("embedding of 2,000 values", False)
    assert [label for label, *_ in cards.data()["labels"]] == [r"a\x1b"]
    json.dumps(cards.data(), allow_nan=False)


# Several files


def test_rows_of_several_files_share_cards_by_image_and_prompt():
    cards = Cards()
    cards.add(ResultFile("a"), [row(0, prompt="p"), row(0, prompt="q"), row(1, prompt="p")])
    cards.add(ResultFile("b"), [row(0, prompt="q"), row(0, prompt="other"), row(2, prompt="p")])
    reported = cards.data()
    assert reported["cards"] == [[0, 4], [1, 3], [2], [5]]
    assert reported["images"] == 3
    assert group_cards([], [], []) == []


def test_rows_of_an_image_share_a_card_where_their_prompts_differ():
    def cards_of(*rows: dict[str, Any]) -> tuple[str, list[list[int]] | None]:
        cards = Cards()
        cards.add(ResultFile("a"), rows)
        return cards.data()["by"], cards.data()["cards"]

    two = [row(n, prompt=prompt) for prompt in ("p", "q") for n in range(2)]
    assert cards_of(*two) == ("image", [[0, 2], [1, 3]])
    assert cards_of(row(0), row(1)) == cards_of(row(0), row(0)) == ("file", None)
    many = [row(0, prompt=str(n)) for n in range(20)]
    assert cards_of(*many)[1] == [[*range(12)], [*range(12, 20)]]
    boxes = [row(0, prompt=str(n), boxes=[box("cat")]) for n in range(8)]
    assert cards_of(*boxes)[1] == [[*range(6)], [6, 7]]
    assert cards_of(row(0, task="search", prompt="a"), row(0, task="search", prompt="b")) == (
        "query", None)  # fmt: skip


def test_rows_of_the_same_image_file_share_a_card_whatever_their_ids(tmp_path, monkeypatch):
    """Runs of other folders name the file otherwise; a file named twice has two cards."""
    monkeypatch.setattr("pgcli.engine.loader.open_engine", pretend.load_model)
    for name in ("photos", "elsewhere"):
        (tmp_path / name).mkdir()
    drawn(tmp_path / "photos", 2)
    run = ["caption", "--model", "demo", "--quiet"]
    names = sorted(file.name for file in (tmp_path / "photos").glob("*.png"))
    lines = [json.dumps({"image": f"photos/{name}"}) for name in (*names[:1], *names)]
    (tmp_path / "twice.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    assert main([*run, "photos", "-o", "one.jsonl"]) == 0
    assert main([*run, "twice.jsonl", "-o", "three.jsonl"]) == 0
    monkeypatch.chdir("elsewhere")
    assert main([*run, str(tmp_path / "photos"), "../photos", "-o", "two.jsonl"]) == 0
    assert viewed("../one.jsonl", "two.jsonl", "../three.jsonl", "-o", "page.html") == 0
    data = content(Path("page.html")).named("data")
    rows = data["rows"]
    ids = [[rows[row]["id"] for row in card] for card in data["cards"]]
    photos = tmp_path / "photos"
    assert ids == [
        [names[0], f"{photos}/{names[0]}", f"photos/{names[0]}"],
        [names[1], f"{photos}/{names[1]}", f"photos/{names[1]}"],
        [f"../photos/{names[0]}", f"photos/{names[0]}"],
        [f"../photos/{names[1]}"],
    ]
    assert data["images"] == 2


# Images


def test_thumbnail_is_small_upright_and_without_metadata(tmp_path):
    image = Image.new("RGB", (400, 200), "white")
    image.paste("red", (0, 0, 200, 200))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated clockwise
    exif[0x010E] = "who was there"
    exif.get_ifd(0x8825)[1] = "N"
    file = tmp_path / "a.jpg"
    image.save(file, exif=exif, icc_profile=b"x" * 200, comment=b"secret")
    made = ThumbnailMaker(64, ImageLimits())(Item(0, "a", "a", str(file)))
    assert (made.width, made.height) == (200, 400)
    data = made.pixels.tobytes()
    small = Image.open(BytesIO(data))
    assert small.format == "WEBP"
    assert small.size == (32, 64)
    assert not dict(small.getexif())
    assert "icc_profile" not in small.info
    assert b"who" not in data
    assert b"secret" not in data
    red, white = small.convert("RGB").getpixel((16, 5)), small.convert("RGB").getpixel((16, 60))
    assert red[1] < 60
    assert white[1] > 200


def test_thumbnail_is_never_larger_than_its_image(tmp_path):
    Image.new("L", (20, 10)).save(tmp_path / "a.png")
    size, small = load_thumbnail(str(tmp_path / "a.png"), 300, ImageLimits())
    assert size == small.size == (20, 10)
    assert small.mode == "RGB"
    assert default_side(10) > default_side(1_000) > default_side(10_000)


# The command


def test_moved_images_are_found_in_the_given_folder_only(results, tmp_path):
    elsewhere = tmp_path / "moved"
    elsewhere.mkdir()
    for name in ("00000.png", "00001.png"):
        Path(name).rename(elsewhere / name)
    saved(results, [row(0), row(1, image="/gone/00001.png"), row(2, image="../00002.png")])
    assert viewed(results, "-o", "g.html", "--images", elsewhere) == 0
    page = content(Path("g.html"))
    entries = [page.named(f"image-{number}") for number in range(3)]
    assert [entry[0] != 0 for entry in entries] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["rows.jsonl", "-o", "rows.jsonl", "--overwrite"], 2),
        (["rows.jsonl", "-o", "-"], 2),
        (["rows.jsonl", "-o", "rows.jsonl/g.html"], 2),
        (["rows.jsonl", "-o", ".", "--overwrite"], 2),
        (["nothing.jsonl", "-o", "g.html"], 2),
        (["00000.png", "-o", "g.html"], 2),
        (["damaged.jsonl", "-o", "g.html"], 2),
        (["empty.jsonl", "-o", "g.html"], 4),
        (["rows.jsonl", "-o", "g.html", "--images", "nowhere"], 2),
        (["rows.jsonl", "-o", "g.html", "--size", "3"], 2),
        ([], 2),
    ],
)
def test_invalid_arguments_are_refused_and_nothing_is_written(results, arguments, code, capsys):
    before = results.read_bytes()
    Path("empty.jsonl").touch()
    Path("damaged.jsonl").write_bytes(before.replace(b"false", b"?") + b"{\n" + before)
    assert viewed(*arguments) == code
    assert results.read_bytes() == before
    assert not Path("g.html").exists()
    assert not list(results.parent.glob(".*.part"))
    assert "Traceback" not in capsys.readouterr().err


def test_impossible_boxes_and_masks_are_not_drawn(results):
    huge = {"codes": [0] * 16, "rle": {"size": [2**20, 2**20], "counts": "PPPPPPP1"}}
    wrong = {"codes": [0] * 16, "rle": {"size": [30, 40], "counts": "\x7f"}}
    boxes = [box("a"), box("b"), box("c", float("nan"), 0, 1, 1)]
    for number, columns in enumerate(
        ({"boxes": boxes}, *({"boxes": boxes[:1], "masks": [mask]} for mask in (huge, wrong)))
    ):
        saved(results, [row(0, **columns), failed(1)])
        assert viewed(results, "-o", f"{number}.html") == 0
        assert viewed(results, "-o", f"{number}.html", "--draw", "drawn") == 2
        assert not Path("drawn").exists()


def test_masks_are_paths_around_their_pixels():
    mask = encode_mask_parts([(np.ones((2, 4), bool), 3, 5)], size=(30, 40))
    values = {"rle": {"size": [30, 40], "counts": mask.counts}}
    path = page_row(row(0, boxes=[box("a")], masks=[values, None]))["masks"]
    assert path == ["M3.5 5.0L6.5 5.0L7.0 5.5L7.0 6.5L6.5 7.0L3.5 7.0L3.0 6.5L3.0 5.5Z", None]


def test_rows_whose_boxes_are_null_are_drawn_without_boxes(results):
    saved(results, [row(0, boxes=None), row(1, boxes=None, masks=[]), row(2, boxes=[box("a")])])
    for options in ((), ("--min-confidence", "0.1", "--nms", "0.5")):
        assert viewed(results, "-o", "g.html", "--draw", "drawn", "--overwrite", *options) == 0
        assert [file.name for file in Path("drawn").iterdir()] == ["00002.png"]


def test_limit_takes_the_first_rows_of_each_file(results):
    other = saved(results.with_name("other.jsonl"), [row(0, answer="b"), row(1), row(2)])
    assert viewed(results, other, "-o", "g.html", "--limit", 2, "--size", 16) == 0
    parsed = content(Path("g.html"))
    assert parsed.named("data")["cards"] == [[0, 2], [1, 3]]
    assert copy(parsed, 0).size == (16, 12)


def test_page_above_its_limit_of_rows_shows_the_first_and_says_so(results, monkeypatch, capsys):
    """The limit holds for all files together, so that they stay side by side."""
    monkeypatch.setattr(gallery, "MAX_ROWS", 2)
    note = "the page shows the first {} rows{}; pgcli view --serve shows all rows of a file"
    assert viewed(results, "-o", "g.html") == 0
    assert note.format(2, "") in capsys.readouterr().err
    assert content(Path("g.html")).named("data")["rows"][2:] == []
    assert viewed(results, "-o", "g.html", "--limit", 2) == 0
    assert "shows the first" not in capsys.readouterr().err
    other = saved(results.with_name("other.jsonl"), [row(0, answer="b"), row(1)])
    assert viewed(results, other, "-o", "g.html") == 0
    assert note.format(1, " of each file") in capsys.readouterr().err
    assert content(Path("g.html")).named("data")["cards"] == [[0, 1]]
    assert not Path("g.html.files").exists()


def test_rows_of_other_programs_may_have_no_image(results, capsys):
    saved(results, [row(0), row(1, id="seven", image=None)])
    assert viewed(results, "-o", "g.html") == 0
    assert "1 image is not shown: seven: The row names no image." in capsys.readouterr().err


def test_page_shows_settings_and_times_of_the_run(tmp_path):
    output = tmp_path / "rows.parquet"
    finished("detect", EXAMPLES, "--object", "star", "-o", output)
    page = tmp_path / "g.html"
    assert viewed(output, "-o", page) == 0
    facts = dict(content(page).named("data")["files"][0]["settings"])
    moved = output.rename(tmp_path / "moved.parquet")  # the run log is not moved with it
    assert viewed(moved, "-o", page, "--overwrite") == 0
    reported = content(page).named("data")
    for known in (facts, dict(reported["files"][0]["settings"])):
        assert known["command"] == "detect"
        assert known["objects"] == "star"
        assert "folder" not in known


def test_run_details_have_no_absolute_paths(tmp_path, monkeypatch):
    """Sources are named as they lie beside the page, which may be sent to others."""
    for name in ("runs", "pages"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "runs")
    Path("photos").symlink_to(EXAMPLES)
    finished("caption", "photos", "-o", "rows.jsonl")
    assert viewed(tmp_path / "runs" / "rows.jsonl", "-o", tmp_path / "pages" / "g.html") == 0
    text = (tmp_path / "pages" / "g.html").read_text()
    file = content(tmp_path / "pages" / "g.html").named("data")["files"][0]
    assert dict(file["settings"])["sources"] == "../runs/photos"
    assert str(tmp_path) not in text
    assert not [value for _, value in file["settings"] if value.startswith("/")]


def test_unfinished_run_is_shown_with_its_rows_so_far(tmp_path):
    output, page = tmp_path / "rows.jsonl", tmp_path / "g.html"
    run = started("caption", *MANY, "-o", output, seconds=0.05)
    wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") > 3)
    assert viewed(output, "-o", page, "--quiet") == 0
    run.kill()
    run.communicate(timeout=100)
    reported = content(page).named("data")
    assert len(reported["rows"]) > 3
    assert re.match(
        rf"the run is not finished: \d+ of {ROWS} rows so far", reported["files"][0]["note"]
    )
    with output.open("ab") as file:
        file.write(b'{"index":9')  # killed while writing a row
    assert viewed(output, "-o", page, "--overwrite") == 0
    note = content(page).named("data")["files"][0]["note"]
    assert re.match(rf"the run stopped at \d+ of {ROWS} rows", note)
