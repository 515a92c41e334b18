"""--draw: the images that are drawn, their names and their formats."""

from __future__ import annotations

import io
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from pgcli.cli.job.draw import painter as drawing
from pgcli.cli.job.draw.file_names import FileNames
from pgcli.cli.job.draw.option import check_draw, check_drawn_images, make_drawing
from pgcli.cli.job.draw.painter import DrawHook
from pgcli.cli.job.draw.pending_items import PendingItems
from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.images import ImageLimits
from pgcli.records import Answer, Box, DecodedImage, Fault, Item, Mask, error_answer
from pgcli.rle import encode
from pgcli.views import formats
from pgcli.views.colours import LabelColours
from pgcli.views.formats import SUFFIXES, writable_suffixes
from pgcli.views.output_folder import write_below
from tests.support.runs import wait_until

STAR = Box("star", 10, 20, 50, 40, 0.9)


def answer_to(item, size, *boxes, masks=None):
    nothing = dict.fromkeys(
        "logprob load_ms vision_ms prefill_ms decode_ms batch error error_message".split()
    )
    return Answer(
        index=item.index,
        id=item.id,
        image=item.image,
        width=size[0],
        height=size[1],
        task="detect",
        prompt="detect star",
        answer="",
        boxes=boxes,
        tokens=1,
        finish="stop",
        model="pretended",
        masks=masks,
        **nothing,
    )


def file_of(format_="PNG", size=(60, 45), colour="grey", **options):
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, format_, **options)
    return file.getvalue()


def item_of(index, id_, data):
    return Item(index, id_, id_, data=data)


def draw(folder, *items, boxes=(STAR,), size=(60, 45), messages=None, **more):
    """Draw the items as a run does, all with the same boxes."""
    messages = [] if messages is None else messages
    with DrawHook(str(folder), say=messages.append, **more) as drawing:
        for item in list(drawing.wrap_items(items)):
            drawing.on_row(answer_to(item, size, *boxes))


def below(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def near(pixel, colour, tolerance=40):
    return all(abs(a - b) <= tolerance for a, b in zip(pixel, colour, strict=True))


@pytest.mark.parametrize("format_", SUFFIXES)
def test_every_format_keeps_its_name_its_format_and_its_size(tmp_path, format_):
    for number, ending in enumerate(SUFFIXES[format_]):
        name = f"sub/one{ending.upper()}"
        draw(tmp_path / f"drawn{number}", item_of(0, name, file_of(format_)))
        with Image.open(tmp_path / f"drawn{number}" / name) as after:
            assert (after.format, after.size) == (format_, (60, 45))
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


def test_format_that_pillow_cannot_write_becomes_png(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "can_write", lambda name: name != "WEBP")
    messages = []
    items = [item_of(n, f"{n}.webp", file_of("WEBP")) for n in range(3)]
    draw(tmp_path / "drawn", *items, messages=messages)
    assert below(tmp_path / "drawn") == ["0.webp.png", "1.webp.png", "2.webp.png"]
    assert Image.open(tmp_path / "drawn" / "0.webp.png").format == "PNG"
    assert len(messages) == 1
    assert "0.webp" in messages[0]


def test_image_without_boxes_is_copied_and_error_row_is_not(tmp_path):
    good, bad = item_of(0, "good.png", file_of()), item_of(1, "bad.png", file_of())
    fault = Fault("oom", "The device ran out of memory.")
    messages = []
    with DrawHook(str(tmp_path / "drawn"), say=messages.append) as drawing:
        list(drawing.wrap_items([good, bad]))
        drawing.on_row(answer_to(good, (60, 45)))
        image = DecodedImage(bad, 60, 45, None, 1.0, fault)
        drawing.on_row(error_answer(image, "detect star", task="detect", model="m"))
    assert below(tmp_path / "drawn") == ["good.png"]
    assert messages == []
    pixels = np.asarray(Image.open(tmp_path / "drawn" / "good.png"))
    assert (pixels == 128).all()


def test_masks_are_drawn_with_their_boxes(tmp_path):
    inside = np.zeros((45, 60), dtype=bool)
    inside[25:35, 20:40] = True
    item = item_of(0, "a.png", file_of())
    with DrawHook(str(tmp_path / "drawn"), say=print) as drawing:
        list(drawing.wrap_items([item]))
        masks = (Mask(tuple(range(16)), encode(inside)),)
        drawing.on_row(answer_to(item, (60, 45), STAR, masks=masks))
    assert Image.open(tmp_path / "drawn" / "a.png").getpixel((20, 30)) == LabelColours().of("star")


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
    "C:\\images\\c.png": "C/images/c.png",
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
    "\u732b" * 300: "\u732b" * 83 + ".png",
    "a.png/b.png": "a.png_/b.png",
    "d" * 300 + "/x.png": "d" * 250 + "/x.png",
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
    names = FileNames(writable_suffixes())
    whole = [names.claim(id_, index).with_ending(".jpg") for index, id_ in enumerate(ids)]
    for name in whole:
        assert name == os.path.normpath(name)
        assert not name.startswith(("/", "../"))
        assert "\0" not in name
        assert max(len(os.fsencode(part)) for part in name.split("/")) <= 255
    assert len({name.casefold() for name in whole}) == len(ids)


def claimed(*ids):
    names = FileNames(writable_suffixes())
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


def test_many_equal_names_take_constant_time_each(monkeypatch):
    tries = []
    take = FileNames._take
    monkeypatch.setattr(
        FileNames, "_take", lambda self, name: tries.append(name) or take(self, name)
    )
    names = FileNames(writable_suffixes())
    assert [names.claim("a.png", 0).stem for _ in range(500)][-1] == "a-500"
    assert len(tries) < 2 * 500


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
def test_link_or_file_instead_of_a_folder_ends_the_run(tmp_path, kind):
    (tmp_path / "outside").mkdir()
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    if kind == "link":
        (drawn / "sub").symlink_to(tmp_path / "outside")
    else:
        (drawn / "sub").write_text("in the way")
    with pytest.raises(
        OutputFailed, match=r"sub/a\.png: a folder in the path is a link or a file"
    ) as problem:
        draw(drawn, item_of(0, "sub/a.png", file_of()))
    assert problem.value.exit_code == 14
    assert "--draw" in problem.value.hint
    assert below(tmp_path / "outside") == []


def test_removed_draw_folder_ends_the_run_in_a_few_rows(tmp_path):
    items = [item_of(n, f"{n}.png", file_of()) for n in range(60)]
    drawn = []

    def rows():
        with DrawHook(str(tmp_path / "drawn"), say=print) as drawing:
            (tmp_path / "drawn").rmdir()
            for item in drawing.wrap_items(items):
                drawing.on_row(answer_to(item, (60, 45), STAR))
                drawn.append(item)

    with pytest.raises(OutputFailed, match="No such file"):
        rows()
    assert len(drawn) <= drawing.MAX_PENDING


def test_partly_written_drawing_does_not_exist(tmp_path, monkeypatch):
    write_below(str(tmp_path), "a.png", b"whole", token="0")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OutputFailed, match="No space left"):
        write_below(str(tmp_path), "a.png", b"half", token="0")
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"whole"


def test_temporary_file_of_a_killed_run_is_removed(tmp_path):
    (tmp_path / ".pgcli-0.part").symlink_to(tmp_path / "elsewhere")
    write_below(str(tmp_path), "a.png", b"whole", token="0")
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_changed_or_removed_images_are_named_and_not_drawn(tmp_path):
    files = [tmp_path / f"{n}.png" for n in range(4)]
    for file in files:
        file.write_bytes(file_of())
    items = [Item(n, file.name, file.name, path=str(file)) for n, file in enumerate(files)]
    files[1].unlink()
    files[2].write_bytes(file_of(size=(61, 45)))
    messages = []
    draw(tmp_path / "drawn", *items, messages=messages)
    assert below(tmp_path / "drawn") == ["0.png", "3.png"]
    assert len(messages) == 1
    assert messages[0].endswith(": 1.png, 2.png")


def test_pending_drawings_are_bounded(tmp_path, monkeypatch):
    go_on = threading.Event()
    started = []
    monkeypatch.setattr(
        DrawHook, "_draw", lambda self, item, *_, **__: started.append(item) or go_on.wait(100)
    )
    items = [item_of(n, str(n), b"-") for n in range(30)]
    drawing_ = DrawHook(str(tmp_path / "drawn"), say=print)
    drawn = []

    def rows():
        with drawing_:
            for item in drawing_.wrap_items(items):
                drawing_.on_row(answer_to(item, (60, 45)))
                drawn.append(item)

    monkeypatch.setattr(DrawHook, "_finish", lambda self, answer, future: future.result())
    run = threading.Thread(target=rows)
    run.start()
    wait_until(lambda: (len(drawn), len(started)) == (drawing.MAX_PENDING, drawing.THREADS))
    run.join(timeout=0.3)  # nothing more is drawn
    waiting = len(drawn), len(started)
    go_on.set()
    run.join(timeout=60)
    assert waiting == (drawing.MAX_PENDING, drawing.THREADS)
    assert len(drawn) == len(started) == 30


def test_bytes_beyond_the_memory_limit_go_to_files(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    items = [item_of(n, str(n), bytes([n]) * 10) for n in range(5)]
    remembered = PendingItems(in_memory=25)
    for item in items:
        remembered.put(item)
    assert len(below(tmp_path)) == 3
    assert [remembered.take(n) for n in range(5)] == items
    assert below(tmp_path) == []
    remembered.put(items[0])
    assert below(tmp_path) == []  # there is room in memory again
    remembered.clear()
    assert list(tmp_path.iterdir()) == []


def test_images_kept_in_files_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(PendingItems.__init__, "__defaults__", (0,))
    draw(tmp_path / "drawn", *[item_of(n, str(n), file_of("JPEG")) for n in range(3)])
    assert below(tmp_path / "drawn") == ["0.jpg", "1.jpg", "2.jpg"]


def input_for(folder, names, *, overwrite=False, task="detect", items=(), total=0):
    """The parts of an input that `--draw` uses."""

    class Source(list):
        pass

    source = Source(items)
    source.total = total
    plan = SimpleNamespace(
        options=SimpleNamespace(
            input=SimpleNamespace(url_reader=None),
            output=SimpleNamespace(draw=folder, overwrite=overwrite),
        ),
        question=SimpleNamespace(task=task, objects=("star",)),
        sources=tuple(map(str, names)),
        image_limits=ImageLimits(),
    )
    return SimpleNamespace(plan=plan, source=source)


def opened(*arguments, **more):
    input = input_for(*arguments, **more)
    check_draw(input.plan)
    check_drawn_images(input)
    return make_drawing(input, print)


def test_without_draw_nothing_is_drawn():
    assert opened(None, ["images"]) is None


def test_draw_into_a_filled_folder_needs_overwrite(tmp_path):
    (tmp_path / "drawn").mkdir()
    assert isinstance(opened(str(tmp_path / "drawn"), []), DrawHook)
    (tmp_path / "drawn" / "thesis.txt").touch()
    with pytest.raises(OutputExists) as problem:
        opened(str(tmp_path / "drawn"), [])
    assert "--overwrite" in problem.value.hint
    assert isinstance(opened(str(tmp_path / "drawn"), [], overwrite=True), DrawHook)


@pytest.mark.parametrize("where", ["", "no/such/folder", "file"])
def test_invalid_draw_folder_is_refused(tmp_path, where):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError):
        opened(str(tmp_path / where) if where else "", [])


def test_each_answer_with_boxes_is_drawn(tmp_path):
    item = Item(0, "a.png", "a.png", data=file_of(), prompts=("detect star", "what?", "detect it"))
    rows = [
        replace(answer_to(item, (60, 45), *boxes), task="ask", prompt=prompt)
        for prompt, boxes in zip(item.prompts, ([STAR], [], [STAR]), strict=True)
    ]
    with DrawHook(str(tmp_path / "drawn"), say=pytest.fail) as drawing:
        assert list(drawing.wrap_items([item])) == [item]
        for row in rows:
            drawing.on_row(row)
    assert sorted(p.name for p in (tmp_path / "drawn").iterdir()) == ["a-3.png", "a.png"]


@pytest.mark.parametrize("task", ["caption", "ask", "segment", "ocr"])
def test_every_task_may_be_drawn(tmp_path, task):
    assert isinstance(opened(str(tmp_path / "drawn"), [], task=task), DrawHook)


@pytest.mark.parametrize("where", [".", "drawn", "link/drawn", "sub/../../images/drawn"])
def test_draw_folder_inside_a_source_is_refused(tmp_path, where):
    images = tmp_path / "images"
    (images / "sub").mkdir(parents=True)
    (images / "link").symlink_to(images)
    with pytest.raises(UsageError, match="is read"):
        opened(str(images / where), ["-", images], overwrite=True)


def test_draw_folder_with_an_input_is_refused(tmp_path):
    precious = tmp_path / "drawn" / "a.png"
    precious.parent.mkdir()
    precious.write_bytes(b"precious")
    item = Item(0, "a.png", "a.png", path=str(precious))
    with pytest.raises(UsageError, match=r"a\.png is an input"):
        opened(str(tmp_path / "drawn"), ["rows.jsonl"], overwrite=True, items=[item], total=1)
    stream = opened(str(tmp_path / "drawn"), ["-"], overwrite=True, items=[item], total=None)
    with pytest.raises(UsageError, match=r"a\.png is an input"):
        list(stream.wrap_items([item]))
    assert precious.read_bytes() == b"precious"


def test_the_command_draws_what_it_detects(tmp_path):
    from pgcli.cli.main import main

    images = Path(__file__).parents[2] / "examples" / "images"
    drawn = tmp_path / "drawn"
    command = ["detect", str(images), "--object", "star", "--object", "circle", "--model", "demo"]
    assert main([*command, "-o", str(tmp_path / "rows.jsonl"), "--draw", str(drawn), "-q"]) == 0
    assert below(drawn) == below(images)
    for name in below(drawn):
        with Image.open(drawn / name) as after, Image.open(images / name) as before:
            assert after.format == before.format
            assert sorted(after.size) == sorted(before.size)
    assert main([*command, "-q", "--draw", str(drawn)]) == 13
    assert main([*command, "-q", "--draw", str(images / "drawn")]) == 2
