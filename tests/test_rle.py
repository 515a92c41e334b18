"""Run-length encoded masks, byte for byte as pycocotools writes them."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pycocotools import mask as coco

from pgcli.records import Rle
from pgcli.rle import decode_mask, encode_mask, encode_mask_parts, mask_area, mask_bounds, union

noise = arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=40))
blots = st.builds(
    lambda mask, times: np.kron(mask, np.ones(times, bool)),
    noise,
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
masks = noise | blots


def pasted(mask, left, top, size):
    image = np.zeros(size, bool)
    image[top : top + mask.shape[0], left : left + mask.shape[1]] = mask
    return image


def by_pycocotools(mask):
    return coco.encode(np.asfortranarray(mask, dtype=np.uint8))["counts"].decode()


@given(masks)
@example(np.zeros((1, 1), bool))
@example(np.ones((1, 1), bool))
@example(np.ones((3, 2), bool))
def test_encoding_equals_pycocotools(mask):
    assert encode_mask(mask) == Rle(mask.shape, by_pycocotools(mask))


@given(masks, *[st.integers(0, 30)] * 4)
def test_crop_encodes_as_the_mask_pasted_into_the_image(mask, left, top, right, bottom):
    size = (top + mask.shape[0] + bottom, left + mask.shape[1] + right)
    found = encode_mask_parts([(mask, left, top)], size=size)
    assert found == Rle(size, by_pycocotools(pasted(mask, left, top, size)))


@given(masks)
def test_decoding_inverts_encoding_here_and_in_pycocotools(mask):
    rle = encode_mask(mask)
    for read in (decode_mask(rle), coco.decode({"size": list(rle.size), "counts": rle.counts})):
        assert read.shape == mask.shape
        assert (read == mask).all()


def test_empty_mask_is_one_run_of_zeros():
    size = (30, 40)
    assert encode_mask_parts([], size=size).counts == by_pycocotools(np.zeros(size, bool))
    empty = np.zeros((0, 5), bool)
    assert encode_mask_parts([(empty, 3, 3)], size=size) == encode_mask_parts([], size=size)


@given(arrays(bool, st.tuples(st.integers(2, 3), st.integers(1, 9), st.integers(1, 9))))
def test_union_has_the_pixels_of_every_mask(masks):
    assert union([encode_mask(mask) for mask in masks]) == encode_mask(masks.any(axis=0))


def test_measures_of_masks_with_empty_runs_are_right():
    for counts in ("01122OOON20NW0O", "0311OM12S0ON1", "322NO20O3OM60", "01P0O110OO71OO0"):
        mask = Rle((4, 6), counts)
        again = encode_mask(decode_mask(mask))
        assert union([mask, mask]) == again
        assert (mask_area(mask), mask_bounds(mask)) == (mask_area(again), mask_bounds(again))


def test_small_mask_in_a_huge_image_needs_little_memory():
    tracemalloc.start()
    rle = encode_mask_parts([(np.ones((50, 50), bool), 9000, 9000)], size=(10_000, 10_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**18
    assert coco.area({"size": list(rle.size), "counts": rle.counts}) == 2500
    assert list(coco.toBbox({"size": list(rle.size), "counts": rle.counts})) == [9000, 9000, 50, 50]


@pytest.mark.parametrize(("left", "top"), [(-1, 0), (0, -1), (9, 0), (0, 9)])
def test_mask_that_exceeds_the_image_is_rejected(left, top):
    with pytest.raises(ValueError, match=r"2 x 2 mask at .* leaves"):
        encode_mask_parts([(np.ones((2, 2), bool), left, top)], size=(10, 10))


@pytest.mark.parametrize(
    "counts",
    ["", "T", "0T", "4", "6", "44", "O5", "é", " ", "\x00", "p", "PPPPPPPPPPPPPP0", "24O", "~" * 9],
)
def test_counts_that_do_not_fit_the_size_are_rejected(counts):
    with pytest.raises(ValueError, match="the counts"):
        decode_mask(Rle((1, 5), counts))


def test_endless_number_is_rejected_before_it_overflows():
    with pytest.raises(ValueError, match="number larger than any image"):
        decode_mask(Rle((1, 5), "5" + "P" * 40 + "0"))


@given(st.text(st.characters(min_codepoint=40, max_codepoint=120), max_size=12))
def test_any_text_round_trips_or_is_rejected(counts):
    try:
        mask = decode_mask(Rle((4, 6), counts))
    except ValueError:
        return
    assert mask.shape == (4, 6)
    again = encode_mask(mask)
    assume(len(again.counts) == len(counts))  # a number may have more characters than necessary
    assert (decode_mask(again) == mask).all()
