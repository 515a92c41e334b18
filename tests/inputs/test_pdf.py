"""PDF files as sources: their pages are items, rendered within limits; hostile ones cost rows."""

import io
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pgcli.errors import UsageError
from pgcli.images import ImageDecoder, ImageLimits, ImageSpec, decode, pdf
from pgcli.images.files import item_bytes
from pgcli.images.pool import decode_ahead
from pgcli.inputs import Inventory

pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed")
SPEC = ImageSpec(56)


def sheet(number):
    image = Image.new("RGB", (400, 560), "white")
    ImageDraw.Draw(image).rectangle((50, 50 + 60 * number, 350, 110 + 60 * number), fill="navy")
    return image


def pdf_of(pages):
    file = io.BytesIO()
    pages[0].save(file, "PDF", save_all=True, append_images=pages[1:])
    return file.getvalue()


def plain_pdf(*bodies, pages="[3 0 R]", count=1, media="[0 0 200 300]", extra=""):
    """A PDF of one page with these contents, written by hand."""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids {pages} /Count {count} >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox {media} /Contents 4 0 R {extra} >>",
        *bodies,
    ]
    data, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    xref = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    table = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{xref}"
    trailer = f"trailer << /Root 1 0 R /Size {len(objects) + 1} >>\n"
    return data + f"{table}{trailer}startxref\n{len(data)}\n%%EOF".encode("latin-1")


def stream(text):
    return f"<< /Length {len(text)} >> stream\n{text}\nendstream"


def items(*sources, **options):
    return [*Inventory.scan([*map(str, sources)], **options).items()]


@pytest.fixture
def report(tmp_path):
    file = tmp_path / "report.pdf"
    file.write_bytes(pdf_of([sheet(n) for n in range(4)]))
    return file


def test_pages_are_items_in_order(report, tmp_path):
    found = items(report)
    assert [item.id for item in found] == [f"{report}/{n}" for n in (1, 2, 3, 4)]
    assert [item.image for item in found] == [item.id for item in found]
    assert found[2].span == (3, 0)
    inventory = Inventory.scan([str(report)])
    assert [item.id for item in inventory.items(2, 4)] == [f"{report}/3", f"{report}/4"]


def test_a_folder_of_pdfs_is_a_data_set(report, tmp_path):
    (tmp_path / "b.pdf").write_bytes(pdf_of([sheet(0)]))
    (tmp_path / "notes.txt").write_text("x")
    assert [Path(item.id).name for item in items(tmp_path)] == ["1", "1", "2", "3", "4"]


def test_a_page_is_the_same_picture_as_its_image(report):
    third = items(report)[2]
    decoded = decode(third, SPEC, ImageLimits())
    assert (decoded.width, decoded.height) == (1072, 1500)
    expected = np.asarray(SPEC.resize(sheet(2)), np.int16)
    assert np.abs(decoded.pixels - expected).mean() < 3
    page = Image.open(io.BytesIO(item_bytes(third, ImageLimits())))
    assert (page.format, page.size) == ("PNG", (1072, 1500))


def test_decoding_processes_render_the_same_pixels(report):
    found = items(report)
    ahead = decode_ahead(found, ImageDecoder(SPEC), workers=2, total=None)
    decoded = [image for image in ahead if image is not None]
    for image, item in zip(decoded, found, strict=True):
        np.testing.assert_array_equal(image.pixels, decode(item, SPEC, ImageLimits()).pixels)


def test_a_process_opens_a_file_once(report, monkeypatch):
    import pypdfium2

    opened = []
    real = pypdfium2.PdfDocument
    monkeypatch.setattr(pypdfium2, "PdfDocument", lambda file: opened.append(file) or real(file))
    monkeypatch.setattr(pdf, "_last", None)
    for page in (1, 4, 2):
        pdf.rendered(str(report), page, None)
    assert len(opened) == 1
    report.write_bytes(pdf_of([sheet(5)]))
    with pytest.raises(pdf.PdfError, match="has 1 pages"):
        pdf.rendered(str(report), 2, None)
    assert len(opened) == 2


def fault(data, tmp_path, name="x.pdf"):
    """The fault of the only item of a file, when it is listed or decoded."""
    (tmp_path / name).write_bytes(data)
    (item,) = items(tmp_path / name)
    decoded = decode(item, SPEC, ImageLimits())
    return None if decoded.fault is None else decoded.fault.code


ENCRYPTED = "<< /Filter /Standard /V 1 /R 2 /P -4 /O <" + "41" * 32 + "> /U <" + "42" * 32 + "> >>"


def test_unreadable_files_are_failed_rows(tmp_path):
    assert fault(b"", tmp_path) == "decode_failed"
    assert fault(b"no pdf at all", tmp_path) == "decode_failed"
    assert fault(pdf_of([sheet(0)])[:200], tmp_path) == "decode_failed"
    assert fault(plain_pdf(pages="[]", count=0), tmp_path) == "decode_failed"
    encrypted = plain_pdf(stream(""), ENCRYPTED).replace(
        b"trailer << ", b"trailer << /Encrypt 5 0 R /ID [<41> <41>] "
    )
    assert fault(encrypted, tmp_path) == "unsupported_format"
    assert fault(plain_pdf(stream("0 0 50 50 re f")), tmp_path) is None


@pytest.mark.parametrize(
    "media", ["[0 0 14400 0.01]", "[0 0 1e30 1e30]", "[0 0 -5 7]", "[0 0 0 0]", "[0 0 nan 1]"]
)
def test_pages_of_any_size_have_bounded_pixels(media, tmp_path):
    (tmp_path / "x.pdf").write_bytes(plain_pdf(stream("0 0 50 50 re f"), media=media))
    (item,) = items(tmp_path / "x.pdf")
    decoded = decode(item, SPEC, ImageLimits())
    assert decoded.fault is not None or max(decoded.width, decoded.height) <= pdf.SIDE + 1


def test_too_many_pages_are_one_failed_row(tmp_path, monkeypatch):
    (tmp_path / "x.pdf").write_bytes(pdf_of([sheet(0)] * 3))
    monkeypatch.setattr(pdf, "MAX_PAGES", 2)
    with pytest.raises(pdf.PdfError, match="more than"):
        pdf.open_document(str(tmp_path / "x.pdf"), None)
    assert fault(plain_pdf(stream(""), count=10**9), tmp_path) in (
        None,
        "too_large",
        "decode_failed",
    )


def test_contents_that_call_themselves_end(tmp_path, monkeypatch):
    monkeypatch.setattr(pdf, "PROCESSOR_SECONDS", 1)
    form = (
        "<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /F 5 0 R >> >> "
        "/Length 12 >> stream\n/F Do /F Do \nendstream"
    )
    data = plain_pdf(stream("/F Do"), form, extra="/Resources << /XObject << /F 5 0 R >> >>")
    assert fault(data, tmp_path) == "timeout"


def test_deep_nesting_costs_its_row(tmp_path):
    deep = plain_pdf(stream(""), "[" * 100_000 + "]" * 100_000, extra="/Annots 5 0 R")
    assert fault(deep, tmp_path) in (None, "worker_crashed", "decode_failed")
    assert fault(plain_pdf(stream("q " * 200_000)), tmp_path) in (None, "decode_failed")


def test_a_process_that_dies_twice_costs_the_row(report, monkeypatch):
    found = items(report)
    monkeypatch.setattr(
        pdf.PROCESS, "_ask", lambda *request: (_ for _ in ()).throw(pdf.ProcessFailed)
    )
    assert decode(found[0], SPEC, ImageLimits()).fault.code == "worker_crashed"


@pytest.mark.parametrize("seed", range(3))
def test_fuzzed_files_cost_rows(seed, tmp_path):
    rng = random.Random(seed)
    sources = [pdf_of([sheet(n) for n in range(2)]), plain_pdf(stream("0 0 50 50 re f"))]
    for number in range(12):
        data = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 40)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / f"{number:02}.pdf").write_bytes(
            data[: rng.randint(1, len(data))] if number % 3 else data
        )
    found = items(tmp_path)
    ahead = decode_ahead(found, ImageDecoder(SPEC), workers=1, total=None)
    decoded = [image for image in ahead if image is not None]
    assert len(decoded) == len(found) >= 12


def test_without_the_extra_its_name_is_said(report, monkeypatch):
    monkeypatch.setattr("pgcli.inputs.pdf.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs pypdfium2"):
        items(report)


def test_this_process_never_renders(report, monkeypatch):
    """PDFium is native code, which a hostile file may crash."""
    monkeypatch.setattr(pdf, "rendered", None)
    monkeypatch.setattr(pdf, "open_document", None)
    (first, *_) = items(report)
    assert decode(first, SPEC, ImageLimits()).fault is None


def test_relative_paths_are_those_of_the_current_folder(report, tmp_path, monkeypatch):
    """Also after the process that reads PDFs has started in another one."""
    monkeypatch.chdir(tmp_path)
    assert len(items("report.pdf")) == 4
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    Path("report.pdf").write_bytes(pdf_of([sheet(0)]))
    (page,) = items("report.pdf")
    assert decode(page, SPEC, ImageLimits()).fault is None


def test_a_folder_is_no_pdf_as_it_is_no_image(tmp_path):
    with pytest.raises(pdf.PdfError) as caught:
        pdf.page_png(str(tmp_path), 1)
    assert caught.value.fault.code == "not_a_regular_file"
