"""--draw: drawn images, their names and formats, and invalid folders."""

import io
import os
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.records import Box, Item, Mask
from pgcli.results import hooks
from pgcli.results.exports.rows import FileNames
from pgcli.results.hooks import Drawings, draw_target, drawable_answer, write_below
from pgcli.results.overlay import DRAWN, SUFFIXES, LabelColours
from pgcli.rle import encode_mask
from pgcli.rows import RowSchema
from tests.support.exporting import answer, refused
from tests.support.runs import processor_time_below, wait_until

STAR = Box("star", 10, 20, 50, 40, 0.9)


def answer_to(item, size=(60, 45), *boxes, **changes):
    columns = {"id": item.id, "image": item.image, "width": size[0], "height": size[1]}
    asked = {"task": "detect", "prompt": "detect star", "boxes": boxes}
    return answer(item.index, **columns | asked | changes)


def file_of(format_="PNG", size=(60, 45), colour="grey", **options):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, format_, **options)
    return file.getvalue()


def item_of(index, id_, data):
    return Item(index, id_, id_, data=data)


def draw(folder, *items, boxes=(STAR,), size=(60, 45), is_saved=False, **more):
    """Draw the items as a run does, all with the same boxes; the fact of the summary."""
    hook = Drawings(str(folder), **more)
    for item in items:
        hook.on_row(answer_to(item, size, *boxes), item, is_saved=is_saved)
    ((name, text),) = hook.finish(complete=True)
    assert name == "drawn"
    return text


def below(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def near(pixel, colour, tolerance=40):
    return all(abs(a - b) <= tolerance for a, b in zip(pixel, colour, strict=True))


@pytest.mark.parametrize(
    ("name", "format_", "drawn", "saved_as"),
    [
        ("sub/one.JPG", "JPEG", "sub/one.JPG", "JPEG"),
        ("one.jpeg", "JPEG", "one.jpeg", "JPEG"),
        ("one.png", "PNG", "one.png", "PNG"),
        ("one.jpe", "JPEG", "one.jpe.jpg", "JPEG"),
        ("one", "JPEG", "one.jpg", "JPEG"),
        *((f"one{SUFFIXES[name]}", name, f"one{SUFFIXES[name]}.png", "PNG")
          for name in SUFFIXES if name not in ("JPEG", "PNG")),
    ],
)  # fmt: skip
def test_jpeg_stays_jpeg_and_other_images_become_png(tmp_path, name, format_, drawn, saved_as):
    draw(tmp_path, item_of(0, name, file_of(format_)))
    assert below(tmp_path) == [drawn]
    with Image.open(tmp_path / drawn) as after:
        assert (after.format, after.size) == (saved_as, (60, 45))
        assert near(after.convert("RGB").getpixel((30, 20)), LabelColours().of("star"))
        assert near(after.convert("RGB").getpixel((55, 10)), (128, 128, 128))


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_rotated_image_is_drawn_upright_without_exif(tmp_path, format_):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret"
    item = item_of(0, "turned", file_of(format_, exif=exif))
    draw(tmp_path, item, size=(45, 60))
    (name,) = below(tmp_path)
    with Image.open(tmp_path / name) as after:
        assert after.size == (45, 60)
        assert after.getexif().get(0x0112, 1) == 1
        assert near(after.convert("RGB").getpixel((30, 20)), LabelColours().of("star"))
    assert b"secret" not in (tmp_path / name).read_bytes()


def test_a_colour_profile_is_kept_if_it_is_for_rgb(tmp_path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    grey = profile[:16] + b"GRAY" + profile[20:]
    for number, (given_, kept) in enumerate([(profile, profile), (grey, None)]):
        data = file_of("JPEG", icc_profile=given_)
        draw(tmp_path / str(number), item_of(0, "a.jpg", data))
        with Image.open(tmp_path / str(number) / "a.jpg") as after:
            assert after.info.get("icc_profile") == kept


def test_image_without_boxes_is_copied_and_error_row_is_not(tmp_path):
    good, bad = item_of(0, "good.png", file_of()), item_of(1, "bad.png", file_of())
    hook = Drawings(str(tmp_path / "drawn"))
    hook.on_row(answer_to(good), good, is_saved=False)
    hook.on_row(refused(1, id="bad.png", task="detect"), bad, is_saved=False)
    assert hook.finish(complete=True) == [("drawn", f"1 in {tmp_path}/drawn")]
    assert below(tmp_path / "drawn") == ["good.png"]
    pixels = np.asarray(Image.open(tmp_path / "drawn" / "good.png"))
    assert (pixels == 128).all()


def test_labels_have_the_same_colours_in_every_image(tmp_path):
    labels = [
        "star",
        next(w for w in "abcdefghijklmnop" if LabelColours().of(w) == LabelColours().of("star")),
    ]
    items = [item_of(n, f"{n}.png", file_of()) for n in range(2)]
    boxes = [Box(label, 5 + 30 * n, 25, 25 + 30 * n, 44, 0.9) for n, label in enumerate(labels)]
    draw(tmp_path, *items, boxes=boxes, labels=labels)
    for name in below(tmp_path):
        with Image.open(tmp_path / name) as after:
            found = [after.getpixel((5, 43)), after.getpixel((35, 43))]
        assert found == [LabelColours(labels).of(label) for label in labels]


HOSTILE = {
    "/etc/passwd.png": "etc/passwd.png",
    "../../up.png": "up.png",
    "a/../../b.png": "a/b.png",
    "./x//y/./z.png": "x/y/z.png",
    "C:\\images\\c.png": "C:/images/c.png",
    "\\\\share\\c.png": "share/c.png",
    "nul\0name.png": "nul_name.png",
    "..": "7.png",
    "": "7.png",
    "/": "7.png",
    "0": "0.png",
    "v1.2": "v1.2.png",
    ".png": ".png.png",
    "notes.txt": "notes.txt.png",
    "file:sub/a%20b.png": "sub/a b.png",
    "file:///tmp/../abs.png": "tmp/abs.png",
    "file:latin-%E9.png": os.fsdecode(b"latin-\xe9.png"),
    "file:%2e%2e/%2e%2e/up.png": "up.png",
    "file:a%00b.png": "a_b.png",
    "half\ud800.png": "half\ufffd.png",
    "new\nline\x1b[2J.png": "new_line_[2J.png",
    "n" * 251 + ".png": "n" * 251 + ".png",
    "n" * 300 + ".png": "n" * 251 + ".png",
    "\u732b" * 300: "\u732b" * 82 + ".png",
    "a.png/b.png": "a.png_/b.png",
    "d" * 300 + "/x.png": "d" * 255 + "/x.png",
}


@pytest.mark.parametrize("id_", HOSTILE)
def test_drawing_is_in_the_folder_for_any_id(tmp_path, id_):
    draw(tmp_path / "drawn", item_of(7, id_, file_of()))
    assert below(tmp_path) == [f"drawn/{HOSTILE[id_]}"]


def test_an_id_of_many_folders_keeps_the_innermost(tmp_path):
    draw(tmp_path / "drawn", item_of(0, "deep/" * 5000 + "leaf.png", file_of()))
    (name,) = below(tmp_path / "drawn")
    assert name.endswith("deep/leaf.png")
    assert len(name) <= 2048


@given(st.lists(st.text(), max_size=12))
def test_ids_give_unique_files_inside_the_folder(ids):
    names = FileNames(frozenset(DRAWN))
    whole = [names.claim(id_, index).with_ending(".jpg") for index, id_ in enumerate(ids)]
    for name in whole:
        assert name == os.path.normpath(name)
        assert not name.startswith(("/", "../"))
        assert "\0" not in name
        assert max(len(os.fsencode(part)) for part in name.split("/")) <= 255
    assert len({name.casefold() for name in whole}) == len(ids)


def claimed(*ids):
    names = FileNames(frozenset(DRAWN))
    return [names.claim(id_, index).with_ending(".jpg") for index, id_ in enumerate(ids)]


def test_equal_names_are_numbered_in_their_order():
    assert claimed("a.png", "a.png", "b.png", "a.png") == ["a.png", "a-2.png", "b.png", "a-3.png"]
    assert claimed("a.png", "a-2.png", "a.png") == ["a.png", "a-2.png", "a-3.png"]
    assert claimed("a.png", "A.PNG", "./a.png") == ["a.png", "A-2.PNG", "a-3.png"]
    assert claimed("a.jpg", "a.png") == ["a.jpg", "a.png"]
    assert claimed("x", "x.jpg", "x.png") == ["x.jpg", "x-2.jpg", "x-2.png"]
    assert claimed("x.png", "x") == ["x.png", "x-2.jpg"]
    assert claimed("caf\u00e9.png", "cafe\u0301.png") == ["caf\u00e9.png", "cafe\u0301-2.png"]
    assert claimed("n" * 300, "n" * 301)[1].endswith("n-2.jpg")


def test_many_equal_names_are_numbered_without_trying_each_number():
    with processor_time_below(160):  # two, and four hundred where each begins at 2
        names = claimed(*["a.png"] * 5_000)
    assert names == ["a.png", *(f"a-{number}.png" for number in range(2, 5_001))]


def test_link_in_the_draw_folder_is_replaced_not_followed(tmp_path):
    precious = tmp_path / "precious.png"
    precious.write_bytes(b"precious")
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    (drawn / "a.png").symlink_to(precious)
    draw(drawn, item_of(0, "a.png", file_of()))
    assert precious.read_bytes() == b"precious"
    assert not (drawn / "a.png").is_symlink()


@pytest.mark.parametrize("kind", ["link", "file"])
def test_link_or_file_instead_of_a_folder_ends_the_run_in_a_few_rows(tmp_path, kind):
    (tmp_path / "outside").mkdir()
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    if kind == "link":
        (drawn / "sub").symlink_to(tmp_path / "outside")
    else:
        (drawn / "sub").write_text("in the way")
    hook, rows = Drawings(str(drawn)), []

    def draw_all():
        for item in [item_of(n, f"sub/{n}.png", file_of()) for n in range(60)]:
            hook.on_row(answer_to(item, (60, 45), STAR), item, is_saved=False)
            rows.append(item)

    message = f"sub is a {kind}, not a folder that pgcli wrote"
    with pytest.raises(OutputFailed, match=message) as problem:
        draw_all()
    hook.finish(complete=False)  # the error is raised once
    assert len(rows) <= hooks.MAX_PENDING
    assert problem.value.exit_code == 14
    assert "--draw" in problem.value.hint
    assert below(tmp_path / "outside") == []


def test_partly_written_drawing_does_not_exist(tmp_path, monkeypatch):
    write_below(str(tmp_path), "a.png", b"whole")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputFailed, match="No space left"):
        write_below(str(tmp_path), "a.png", b"half")
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"whole"


def test_changed_or_removed_images_are_named_and_not_drawn(tmp_path):
    files = [tmp_path / f"{n}.png" for n in range(4)]
    for file in files:
        file.write_bytes(file_of())
    items = [Item(n, file.name, file.name, path=str(file)) for n, file in enumerate(files)]
    files[1].unlink()
    files[2].write_bytes(file_of(size=(61, 45)))
    text = draw(tmp_path / "drawn", *items)
    assert below(tmp_path / "drawn") == ["0.png", "3.png"]
    assert text.startswith(f"2 in {tmp_path}/drawn; changed or removed images, which are not")
    assert text.endswith(": 1.png, 2.png")
    assert "0.png, 1.png, 2.png, 3.png, 4.png and 3 more" in draw(
        tmp_path / "more", *[item_of(n, f"{n}.png", b"no image") for n in range(8)]
    )


def test_pending_drawings_are_bounded(tmp_path, monkeypatch):
    go_on = threading.Event()
    started, drawn = [], []
    monkeypatch.setattr(
        Drawings, "_draw", lambda self, item, *_, **__: started.append(item) or go_on.wait(100)
    )
    hook = Drawings(str(tmp_path / "drawn"))

    def rows():
        for item in [item_of(n, str(n), b"-") for n in range(30)]:
            hook.on_row(answer_to(item), item, is_saved=False)
            drawn.append(item)
        hook.finish(complete=True)

    run = threading.Thread(target=rows)
    run.start()
    wait_until(lambda: (len(drawn), len(started)) == (hooks.MAX_PENDING - 1, hooks.THREADS))
    run.join(timeout=0.3)  # nothing more is drawn
    waiting = len(drawn), len(started)
    go_on.set()
    run.join(timeout=60)
    assert waiting == (hooks.MAX_PENDING - 1, hooks.THREADS)
    assert len(drawn) == len(started) == 30


def test_large_bytes_of_one_image_are_held_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, "LARGE_BYTES", 10)
    hook = Drawings(str(tmp_path / "drawn"))
    for number in range(3):
        item = item_of(number, f"{number}.png", file_of())
        hook.on_row(answer_to(item, (60, 45), STAR), item, is_saved=False)
        assert len(below(tmp_path / "drawn")) == number + 1
    hook.finish(complete=True)


def test_drawings_that_an_earlier_run_lost_are_made(tmp_path):
    items = [item_of(n, name, file_of("JPEG")) for n, name in enumerate(("a.jpg", "b", "a.jpg"))]
    draw(tmp_path, *items[:2])
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in below(tmp_path)}
    assert before.keys() == {"a.jpg", "b.jpg"}
    assert draw(tmp_path, *items, is_saved=True) == f"1 in {tmp_path}; 2 drawn before"
    assert below(tmp_path) == ["a-2.jpg", "a.jpg", "b.jpg"]
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in before.items())


def test_each_answer_with_boxes_is_drawn(tmp_path):
    item = Item(0, "a.png", "a.png", data=file_of(), prompts=("detect star", "what?", "detect it"))
    hook = Drawings(str(tmp_path / "drawn"))
    for prompt, boxes in zip(item.prompts, ([STAR], [], [STAR]), strict=True):
        row = replace(answer_to(item, (60, 45), *boxes), task="ask", prompt=prompt)
        hook.on_row(row, item, is_saved=False)
    hook.finish(complete=True)
    assert below(tmp_path / "drawn") == ["a-3.png", "a.png"]


def test_drawings_of_each_object_are_named_after_it(tmp_path):
    hook = Drawings(str(tmp_path / "drawn"), each=True)
    item = item_of(0, "sub/a.png", file_of())
    for label in ("cat", "red/blue car"):
        answer = answer_to(item, (60, 45), STAR, task="detect", prompt=f"detect {label}")
        hook.on_row(answer, item, is_saved=False)
    hook.finish(complete=True)
    assert below(tmp_path / "drawn") == ["sub/a-cat.png", "sub/a-red_blue car.png"]


def test_error_row_keeps_its_name(tmp_path):
    items = [item_of(n, name, file_of()) for n, name in enumerate(("a.png", "A.png"))]
    for is_saved in (False, True):  # the same names once the row is retried
        hook = Drawings(str(tmp_path))
        row = answer_to(items[0], (60, 45)) if is_saved else refused(0, task="detect")
        hook.on_row(row, items[0], is_saved=False)
        hook.on_row(answer_to(items[1]), items[1], is_saved=is_saved)
        hook.finish(complete=True)
        assert below(tmp_path) == ["A-2.png"] + ["a.png"] * is_saved


def test_draw_into_a_filled_folder_needs_overwrite(tmp_path):
    (tmp_path / "drawn").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "drawn")
    draw_target(str(tmp_path / "link")).check()
    (tmp_path / "drawn" / "thesis.txt").touch()
    for name in ("drawn", "link"):
        with pytest.raises(OutputExists) as problem:
            draw_target(str(tmp_path / name)).check()
        assert "--overwrite" in problem.value.hint
        draw_target(str(tmp_path / name), overwrite=True).check()


@pytest.mark.parametrize(
    ("folder", "source", "message"),
    [
        ("", "images", "--draw needs the name of a folder"),
        ("file/folder", "images", "is not a folder"),
        ("file", "images", "is not a folder"),
        ("images", "images", "is read"),
        ("images/drawn", "images", "is read"),
        ("images/link/drawn", "images", "is read"),
        ("images/sub/../../images/drawn", "images", "is read"),
        ("drawn", "drawn/a.png", "is an input"),
        ("drawn", "drawn/*.png", "is an input"),
        ("drawn", "link.png", "is an input"),
        ("drawn", "drawn/sub", "is an input"),
    ],
)
def test_invalid_draw_folder_is_an_error(tmp_path, folder, source, message):
    for made in ("images/sub", "drawn/sub"):
        (tmp_path / made).mkdir(parents=True)
    for made in ("file", "drawn/a.png"):
        (tmp_path / made).touch()
    (tmp_path / "images/link").symlink_to(tmp_path / "images")
    (tmp_path / "link.png").symlink_to(tmp_path / "drawn/a.png")
    draw_target(str(tmp_path / "drawn"), [str(tmp_path / "rows.jsonl")], overwrite=True).check()
    with pytest.raises(UsageError, match=message):
        draw_target(
            str(tmp_path / folder) if folder else "",
            ["-", "s3://b/x", str(tmp_path / source)],
            overwrite=True,
        ).check()


def test_input_in_the_draw_folder_is_an_error(tmp_path):
    precious = tmp_path / "drawn" / "a.png"
    precious.parent.mkdir()
    precious.write_bytes(b"precious")
    hook, item = Drawings(str(tmp_path / "drawn")), Item(0, "a.png", "a.png", path=str(precious))
    with pytest.raises(UsageError, match=r"a\.png is an input"):
        hook.skips(item)
    with pytest.raises(UsageError, match=r"a\.png is an input"):
        hook.on_row(answer_to(item, (60, 45), STAR), item, is_saved=False)
    assert precious.read_bytes() == b"precious"
    assert not hook.skips(Item(0, "b", "b", path="no\0name"))


BARE = {"label": "star", "xmin": 1, "ymin": 1, "xmax": 5, "ymax": 5}


def test_rows_of_other_programs_are_drawn_if_they_are_valid():
    row = RowSchema(extras=("masks",)).row(
        answer(
            boxes=(STAR, STAR), masks=(None, Mask((), encode_mask(np.ones((4, 4), bool)))), width=8
        )
    )
    drawn = drawable_answer(row | {"masks": None, "boxes": [BARE]})
    assert (len(drawn.boxes), drawn.boxes[0].score, drawn.masks) == (1, None, None)
    with pytest.raises(UsageError, match="cannot be drawn: its mask"):
        drawable_answer(row)  # the mask has another size
    for boxes in ([{"label": 3}], ["box"], [BARE | {"xmin": float("nan")}], 3):
        with pytest.raises(UsageError, match="cannot be drawn: boxes"):
            drawable_answer(row | {"masks": None, "boxes": boxes})
