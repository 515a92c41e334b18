"""Decode the mask codes of answers into run-length encoded masks.

B masks · R resolution of the decoder
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from pgcli import parsing, rle
from pgcli.model.mask_decoder import RESOLUTION, MaskDecoder
from pgcli.records import Box, Mask, Rle, Span

MASKS_AT_ONCE = 64  # the decoder's widest layer takes 512 KiB for each
TILE_SIDE = 4096  # pixels; a mask is computed in tiles of at most TILE_PIXELS
TILE_PIXELS = 2**20


def masks_of_rows(
    rows: Iterable[tuple[Sequence[Span], tuple[int, int]]], decoder: MaskDecoder | None
) -> list[tuple[Mask | None, ...]]:
    """The masks of several answers, each with its image's size, all decoded in one pass.

    An answer has a mask for each box, in the order of `parsing.boxes`; None if a box does not have
    exactly 16 codes. Without a decoder masks have codes only. Sizes are width and height in pixels.
    """
    boxes = [(size, parsing.segments(spans, width=size[0], height=size[1])) for spans, size in rows]
    codes = [segment.codes for _, segments in boxes for segment in segments if segment.codes]
    grids = decoded(codes, decoder) if decoder and codes else iter(())

    def mask(segment: parsing.SegmentedBox, size: tuple[int, int]) -> Mask | None:
        if segment.codes is None:
            return None
        return Mask(segment.codes, in_box(next(grids), segment.box, size) if decoder else None)

    return [tuple(mask(segment, size) for segment in segments) for size, segments in boxes]


@torch.inference_mode()
def decoded(codes: Sequence[tuple[int, ...]], decoder: MaskDecoder) -> Iterator[np.ndarray]:
    """The (R, R) float32 logits of each mask; positive pixels belong to the object."""
    code_B16 = torch.tensor(codes, device=decoder.codebook.device)
    parts = [decoder(part).cpu() for part in torch.split(code_B16, MASKS_AT_ONCE)]
    return iter(torch.cat(parts).numpy())


def in_box(grid_RR: np.ndarray, box: Box, size: tuple[int, int]) -> Rle:
    """The decoder's mask resized to the box of an image of `size`, width and height.

    As in big_vision's evaluator: the corners are truncated to integers, the filter is Pillow's
    bilinear one, and pixels above 0 belong to the object. A box thinner than a pixel has an empty
    mask.
    """
    width, height = size
    return rle.encode_mask_parts(_mask_parts(grid_RR, box), size=(height, width))


def _mask_parts(grid_RR: np.ndarray, box: Box) -> Iterator[rle.MaskPart]:
    left, top, right, bottom = map(int, (box.xmin, box.ymin, box.xmax, box.ymax))
    width, height = right - left, bottom - top
    rows = min(max(height, 1), TILE_SIDE)
    columns = min(TILE_PIXELS // rows, TILE_SIDE)
    for y in range(0, height, rows):
        down = _filter(height, range(y, min(y + rows, height)))
        for x in range(0, width, columns):
            across = _filter(width, range(x, min(x + columns, width)))
            narrow = (across @ grid_RR.T).astype(np.float32)  # as Pillow rounds between its passes
            yield (narrow @ down.T > 0).T, left + x, top + y


def _filter(size: int, columns: range) -> np.ndarray:
    """The bilinear weights of the decoder's pixels for these columns of a side of `size` pixels."""
    scale = RESOLUTION / size
    centres = (np.arange(columns.start, columns.stop) + 0.5) * scale
    distances = np.abs(np.arange(RESOLUTION) + 0.5 - centres[:, None]) / max(scale, 1.0)
    weights = np.clip(1 - distances, 0, None)
    filtered: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    return filtered
