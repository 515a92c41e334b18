"""Mask codes are decoded and drawn into their boxes on the image."""

import io
import itertools
import pickle
import shutil
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools import mask as coco
from safetensors.torch import save_file

from pgcli import parsing, rle
from pgcli.checkpoints import mask_decoder
from pgcli.checkpoints.find import MASK_DECODER, Checkpoint
from pgcli.engine import loader, output
from pgcli.engine.output import decoded, in_box, masks_of_rows
from pgcli.errors import InvalidCheckpoint, ModelUnavailable
from pgcli.records import Box, Span

CODE_WIDTH = 24
CODEBOOK = "_vq_vae._embedding"


# big_vision's network in NumPy


def convolved(x_yxi, weights, name):
    """Computed one output pixel at a time, with zeros around the image."""
    kernel_oiyx, bias_o = weights[f"{name}.weight"], weights[f"{name}.bias"]
    size = kernel_oiyx.shape[2]
    edge = size // 2
    wide = np.pad(x_yxi, ((edge, edge), (edge, edge), (0, 0)))
    out = np.zeros((*x_yxi.shape[:2], len(bias_o)))
    for y, x in np.ndindex(*x_yxi.shape[:2]):
        seen = wide[y : y + size, x : x + size]
        out[y, x] = np.einsum("yxi,oiyx->o", seen, kernel_oiyx) + bias_o
    return out


def doubled(x_yxi, weights, name):
    """Each pixel adds a 4 x 4 stamp around its position on an image twice as large."""
    kernel_ioyx, bias_o = weights[f"{name}.weight"], weights[f"{name}.bias"]
    height, width = x_yxi.shape[:2]
    out = np.zeros((2 * height + 2, 2 * width + 2, len(bias_o)))  # with a margin, removed below
    for y, x in np.ndindex(height, width):
        stamp = np.einsum("i,ioyx->yxo", x_yxi[y, x], kernel_ioyx)
        out[2 * y : 2 * y + 4, 2 * x : 2 * x + 4] += stamp
    return out[1:-1, 1:-1] + bias_o


def by_numpy(codes, weights):
    x = np.stack([weights[CODEBOOK][code] for code in codes]).reshape(4, 4, -1)  # row by row
    x = np.maximum(convolved(x, weights, "decoder.0"), 0)
    for name in ("decoder.2.net", "decoder.3.net"):
        y = np.maximum(convolved(x, weights, f"{name}.0"), 0)
        y = np.maximum(convolved(y, weights, f"{name}.2"), 0)
        x = x + convolved(y, weights, f"{name}.4")
    for name in ("decoder.4", "decoder.6", "decoder.8", "decoder.10"):
        x = np.maximum(doubled(x, weights, name), 0)
    return convolved(x, weights, "decoder.12")[..., 0]


# Files


def published_shapes(code_width=CODE_WIDTH):
    """The names and shapes of the published file, including the encoder."""
    shapes = {CODEBOOK: (128, code_width), "decoder.0.weight": (128, code_width, 1, 1)}
    shapes["decoder.0.bias"] = (128,)
    for block, (layer, size) in itertools.product((2, 3), ((0, 3), (2, 3), (4, 1))):
        shapes[f"decoder.{block}.net.{layer}.weight"] = (128, 128, size, size)
        shapes[f"decoder.{block}.net.{layer}.bias"] = (128,)
    for layer, wide, narrow in ((4, 128, 128), (6, 128, 64), (8, 64, 32), (10, 32, 16)):
        shapes[f"decoder.{layer}.weight"] = (wide, narrow, 4, 4)
        shapes[f"decoder.{layer}.bias"] = (narrow,)
    shapes |= {"decoder.12.weight": (1, 16, 1, 1), "decoder.12.bias": (1,)}
    return shapes | {"encoder.0.weight": (16, 1, 4, 4), "_vq_vae._ema_w": (128, code_width)}


def random_weights(seed=0, dtype=np.float32):
    draw = np.random.default_rng(seed)
    weights = {}
    for name, shape in published_shapes().items():
        inputs = shape[0] if name in {f"decoder.{n}.weight" for n in (4, 6, 8, 10)} else 1
        inputs *= 4 if inputs > 1 else np.prod(shape[1:])
        scale = 1 if name == CODEBOOK else 0.1 if name.endswith("bias") else (2 / inputs) ** 0.5
        weights[name] = (draw.standard_normal(shape) * scale).astype(dtype)
    return weights


WEIGHTS = random_weights()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("masks") / "vae-oid.npz"
    np.savez(path, **WEIGHTS)
    return path


@pytest.fixture(scope="module")
def decoder(file):
    return mask_decoder.load_mask_decoder(file)


def some_codes(count, seed=0):
    draw = np.random.default_rng(seed)
    return [tuple(map(int, draw.integers(0, 128, 16))) for _ in range(count)]


def test_decoder_output_equals_a_naive_implementation(decoder):
    codes = some_codes(3)
    found = decoder(torch.tensor(codes)).numpy()
    assert found.shape == (3, 64, 64)
    assert found.dtype == np.float32
    for grid, row in zip(found, codes, strict=True):
        wanted = by_numpy(row, WEIGHTS)
        assert np.abs(wanted).max() > 0.1
        np.testing.assert_allclose(grid, wanted, atol=1e-6)


def test_safetensors_and_compressed_npz_give_the_same_decoder(tmp_path, decoder):
    tensors = {name: torch.from_numpy(array) for name, array in WEIGHTS.items()}
    save_file(tensors, tmp_path / "a.safetensors")
    np.savez_compressed(tmp_path / "b.npz", **WEIGHTS)
    np.savez(tmp_path / "c.npz", **{name: np.asfortranarray(x) for name, x in WEIGHTS.items()})
    (tmp_path / "a.safetensors").rename(tmp_path / "a.npz")  # the suffix does not matter
    for name in ("a.npz", "b.npz", "c.npz"):
        found = mask_decoder.load_mask_decoder(tmp_path / name).state_dict()
        assert all(torch.equal(tensor, found[key]) for key, tensor in decoder.state_dict().items())


def test_a_missing_file_names_the_download(tmp_path):
    for path in (tmp_path / "none.npz", tmp_path):
        with pytest.raises(ModelUnavailable, match="no mask decoder file") as error:
            mask_decoder.load_mask_decoder(path)
        assert "gs://big_vision/paligemma/vae-oid.npz" in error.value.hint


class Trap:
    """Unpickling it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def changed(**changes):
    weights = WEIGHTS | {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in weights.items() if value is not None}


BROKEN = {
    "missing": (changed(decoder__8__bias=None), "has no tensor decoder.8.bias"),
    "no codebook": (changed(_vq_vae___embedding=None), f"has no tensor {CODEBOOK}"),
    "unknown": (changed(decoder__14__bias=np.ones(3)), "has 'decoder.14.bias', which is not"),
    "turned": (
        changed(decoder__10__weight=WEIGHTS["decoder.10.weight"].transpose(1, 0, 2, 3)),
        r"has decoder.10.weight in the shape \(16, 32, 4, 4\), not \(32, 16, 4, 4\)",
    ),
    "codes": (
        changed(_vq_vae___embedding=np.ones((64, CODE_WIDTH), np.float32)),
        r"has _vq_vae._embedding in the shape \(64, 24\), not \(128, at most 4096\)",
    ),
    "wide": (
        changed(_vq_vae___embedding=np.ones((128, 5000), np.float16)),
        r"has _vq_vae._embedding in the shape \(128, 5000\), not \(128, at most 4096\)",
    ),
    "flat": (changed(_vq_vae___embedding=np.ones(128)), r"_vq_vae._embedding in the shape \(128,"),
    "integers": (changed(decoder__8__bias=np.ones(32, np.int64)), "has decoder.8.bias as int64"),
    "not finite": (
        changed(decoder__8__bias=np.full(32, np.nan, np.float32)),
        "has values in decoder.8.bias that are not finite",
    ),
    "too large": (
        changed(decoder__8__bias=np.full(32, 1e300)),
        "has values in decoder.8.bias that are not finite",
    ),
    "huge": (
        changed(decoder__8__bias=np.zeros(2**21 + 1, np.float32)),
        "has 'decoder.8.bias' with 8,388,740 bytes",
    ),
}


@pytest.mark.parametrize(("weights", "message"), BROKEN.values(), ids=BROKEN)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, weights, message):
    np.savez_compressed(tmp_path / "a.npz", **weights)
    with pytest.raises(InvalidCheckpoint, match=message) as error:
        mask_decoder.load_mask_decoder(tmp_path / "a.npz")
    assert str(tmp_path / "a.npz") in str(error.value)
    assert "vae-oid.npz" in error.value.hint


def test_a_pickle_is_never_unpickled(tmp_path):
    sprung = tmp_path / "sprung"
    trap = np.empty(32, dtype=object)
    trap[:] = [Trap(sprung)] * 32
    np.savez(tmp_path / "a.npz", **changed(decoder__8__bias=trap))
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap(sprung)))
    torch.save({"decoder.8.bias": torch.ones(32)}, tmp_path / "c.npz")
    for name, message in (("a", "allow_pickle=False"), ("b", "neither"), ("c", "has no tensor")):
        with pytest.raises(InvalidCheckpoint, match=message):
            mask_decoder.load_mask_decoder(tmp_path / f"{name}.npz")
    assert not sprung.exists()


def npz(members):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return packed.getvalue()


def npy_claiming(shape):
    """An array's header that claims more than the data."""
    made = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(made, header)
    return made.getvalue()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("decoder.8.bias.npy", npy_claiming((10**15,)))], "has no tensor"),
        ([("a.txt", b"")], "has no tensor"),
    ],
)
def test_a_hostile_archive_is_rejected_without_using_memory(tmp_path, members, message):
    path = tmp_path / "a.npz"
    path.write_bytes(npz(members))
    tracemalloc.start()
    with pytest.raises(InvalidCheckpoint, match=message) as error:
        mask_decoder.load_mask_decoder(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**23
    assert len(str(error.value)) < 1000


def test_an_archive_with_an_invalid_name_is_rejected(tmp_path):
    packed = npz([("decoder.8.bias.npyé", b"")]).replace("é".encode(), b"\xff\xff")
    (tmp_path / "a.npz").write_bytes(packed)
    with pytest.raises(InvalidCheckpoint, match=r"not a valid \.npz"):
        mask_decoder.load_mask_decoder(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "damaged",
    [
        npy_claiming((32,)),
        npy_claiming((10**15,)),
        b"no array",
        b"\x93NUMPY\x01\x00\xff\x00" + b"(" * 255,
        b"\x93NUMPY\x09\x00\xff\x00" + b"(" * 255,
    ],
)
def test_a_damaged_array_is_named(tmp_path, damaged):
    members = []
    for name, array in WEIGHTS.items():
        made = io.BytesIO()
        np.save(made, array)
        members.append((f"{name}.npy", damaged if name == "decoder.8.bias" else made.getvalue()))
    (tmp_path / "a.npz").write_bytes(npz(members))
    with pytest.raises(InvalidCheckpoint, match=r"decoder\.8\.bias.* truncated or damaged"):
        mask_decoder.load_mask_decoder(tmp_path / "a.npz")


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_damaged_file_is_rejected_or_read_correctly(tmp_path, decoder, ending):
    path = tmp_path / "a"
    if ending == "npz":
        np.savez_compressed(path.with_suffix(".npz"), **WEIGHTS)
        path.with_suffix(".npz").rename(path)
    else:
        save_file({name: torch.from_numpy(array) for name, array in WEIGHTS.items()}, path)
    whole = path.read_bytes()
    draw = np.random.default_rng(0)
    for cut in (0, 1, 2, 7, 50, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(InvalidCheckpoint):
            mask_decoder.load_mask_decoder(path)
    refused = 0
    for _ in range(30):
        at, bit = int(draw.integers(len(whole) - 3000, len(whole))), 1 << int(draw.integers(8))
        if ending == "safetensors":
            at = int(draw.integers(0, 1500))  # the header: weights have no checksum
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            found = mask_decoder.load_mask_decoder(path).state_dict()
        except InvalidCheckpoint:
            refused += 1
        else:
            assert found.keys() == decoder.state_dict().keys()
    assert refused > 5


# Masks on the image


def answer(*objects):
    """Pieces of an answer: four locations for each object, its mask codes (or None), its label."""
    pieces = []
    for locations, codes, label in objects:
        pieces += [Span("location", f"<loc{location:04}>", location) for location in locations]
        pieces += [Span("mask", f"<seg{code:03}>", code) for code in codes or ()]
        pieces.append(Span("text", f" {label} ; "))
    return pieces


def by_pillow(grid, box, width, height):
    """As in the evaluator: in memory for the whole image."""
    left, top, right, bottom = map(int, (box.xmin, box.ymin, box.xmax, box.ymax))
    image = np.zeros((height, width), bool)
    if left < right and top < bottom:
        stretched = Image.fromarray(grid).resize((right - left, bottom - top), Image.BILINEAR)
        image[top:bottom, left:right] = np.asarray(stretched) > 0
    return image


def smooth(seed=0):
    draw = np.random.default_rng(seed).standard_normal((6, 6)).astype(np.float32)
    return np.asarray(Image.fromarray(draw).resize((64, 64), Image.BICUBIC))


sides = st.integers(1, 300)
spans = st.lists(st.integers(0, 1023), min_size=2, max_size=2).map(sorted)


@given(sides, sides, spans, spans, st.integers(0, 9))
def test_a_mask_is_placed_like_pillows_paste(width, height, xs, ys, seed):
    (xmin, xmax), (ymin, ymax) = xs, ys
    box = Box("", xmin / 1023 * width, ymin / 1023 * height, xmax / 1023 * width, 0, 1)
    box = Box("", box.xmin, box.ymin, box.xmax, ymax / 1023 * height, 1)
    found = in_box(smooth(seed), box, (width, height))
    assert found.size == (height, width)
    wanted = by_pillow(smooth(seed), box, width, height)
    assert (rle.decode_mask(found) == wanted).all()


def masks_of(pieces, size, decoder):
    """The masks of one answer."""
    return masks_of_rows([(pieces, size)], decoder)[0]


def test_answer_has_one_mask_per_box_in_order(decoder):
    first, second, lost, last = some_codes(4)
    pieces = answer(
        ((100, 200, 900, 1000), first, "cat"),
        ((0, 0, 1023, 1023), None, "no mask"),
        ((5, 6, 700, 800), second, "dog"),
        ((500, 500, 400, 600), lost, "corners out of order"),
        ((5, 6, 7, 8), last[:15], "a code too few"),
        ((1, 2, 1023, 4), (*last, 1), "a code too many"),
        ((300, 20, 400, 900), last, "cat"),
    )
    boxes = parsing.boxes(pieces, width=300, height=200)
    found = masks_of(pieces, (300, 200), decoder)
    assert len(boxes) == len(found) == 6
    assert [mask and mask.codes for mask in found] == [first, None, second, None, None, last]
    for box, mask in zip(boxes, found, strict=True):
        if mask is not None:
            grid = decoder(torch.tensor([mask.codes]))[0].numpy()
            assert (rle.decode_mask(mask.rle) == by_pillow(grid, box, 300, 200)).all()
            assert rle.decode_mask(mask.rle).any()


def test_a_model_brings_its_own_decoder_unless_another_is_named(tiny, file, decoder, tmp_path):
    folder = shutil.copytree(tiny, tmp_path / "model")
    assert loader.open_engine(Checkpoint("m", folder), device="cpu")._mask_decoder is None
    own = {name: torch.from_numpy(values) for name, values in random_weights(seed=1).items()}
    save_file(own, folder / MASK_DECODER)
    loaded = loader.open_engine(Checkpoint("m", folder), device="cpu")._mask_decoder
    assert torch.equal(loaded.codebook, own[CODEBOOK].double())
    named = loader.open_engine(
        Checkpoint("m", folder), mask_decoder_file=file, device="cpu"
    )._mask_decoder
    assert torch.equal(named.codebook, decoder.codebook)


def test_masks_of_a_row_do_not_depend_on_other_rows(decoder, monkeypatch):
    monkeypatch.setattr(output, "MASKS_AT_ONCE", 4)
    rows = []
    for row, count in enumerate((3, 0, 1, 6)):
        objects = [((9, 20, 1000, 900), codes, "cat") for codes in some_codes(count, seed=row)]
        rows.append((answer(*objects), (80 + row, 60)))
    together = masks_of_rows(rows, decoder)
    assert [len(found) for found in together] == [3, 0, 1, 6]
    assert together == [masks_of(pieces, size, decoder) for pieces, size in rows]


def test_a_mask_of_100_megapixels_takes_little_memory():
    grid, box = smooth(seed=1), Box("", 0, 0, 12_500, 8_000, 1.0)
    tracemalloc.start()
    found = in_box(grid, box, (12_500, 8_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20
    stored = {"size": list(found.size), "counts": found.counts}
    assert coco.area(stored) / 10**8 == pytest.approx((grid > 0).mean(), abs=0.01)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_masks(decoder, file):
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    codes = some_codes(20)
    for here, there in zip(
        decoded(codes, decoder),
        decoded(codes, mask_decoder.load_mask_decoder(file, device="cuda")),
        strict=True,
    ):
        np.testing.assert_allclose(there, here, atol=1e-6)
