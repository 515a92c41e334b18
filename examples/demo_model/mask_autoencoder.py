"""A vector-quantised autoencoder of masks: 64 x 64 pixels as 16 codes, as PaliGemma's.

B masks · R resolution · W width of a code · K codes
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from examples.demo_model.examples import TILT_STEP, MaskCodes
from examples.demo_model.scenes import SHAPES, TILT_DEGREES, outline
from pgcli.checkpoints.find import MASK_DECODER
from pgcli.checkpoints.mask_decoder import CODEBOOK
from pgcli.model.mask_decoder import NUM_CODES, RESOLUTION, SIDE, MaskDecoder
from pgcli.training.seeds import seed_of
from pgcli.training.task import Loss, TrainingTask

CODE_WIDTH = 32
COMMITMENT = 0.25  # weight of the loss that keeps the encoder's output near its code
SUPERSAMPLING = 4
TILT_RESOLUTION = 4.0  # degrees between the masks that answers have codes of


def shape_mask(shape: str, tilt: float) -> numpy.ndarray:
    """The shape in its bounding box as (R, R) numbers, 1 on the shape and -1 beside it."""
    corners = numpy.array(outline(shape, 0.0, 0.0, 1.0, tilt))
    low, high = corners.min(0), corners.max(0)
    side = RESOLUTION * SUPERSAMPLING
    canvas = Image.new("L", (side, side))
    points = ((corners - low) / (high - low) * side).ravel().tolist()
    ImageDraw.Draw(canvas).polygon(points, fill=255)
    covered = numpy.asarray(canvas.reduce(SUPERSAMPLING), numpy.float32) / 255
    return numpy.where(covered > 0.5, numpy.float32(1), numpy.float32(-1))


class MaskAutoencoder(nn.Module):
    """An encoder to a grid of 4 x 4 vectors, the nearest codes of a codebook, and the decoder."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        widths = (1, 16, 32, 64, 64)
        layers: list[nn.Module] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for width, wider in pairwise(widths):
                layers += [nn.Conv2d(width, wider, kernel_size=4, stride=2, padding=1), nn.ReLU()]
            self.encoder = nn.Sequential(*layers, nn.Conv2d(widths[-1], CODE_WIDTH, kernel_size=1))
            self.masks = MaskDecoder(CODE_WIDTH)
            self._choose_codes()

    @torch.no_grad()
    def _choose_codes(self) -> None:
        """Fill the codebook with vectors of shapes, so that every code is near some of them."""
        rng = Random("the first codes")
        some_BRR = masks_of((rng.choice(SHAPES), _tilt(rng)) for _ in range(NUM_CODES))
        vector_BWSS = self.encoder(some_BRR[:, None])
        place_B = torch.arange(NUM_CODES) % SIDE**2
        vector_B16W = vector_BWSS.flatten(2).movedim(1, 2)
        self.masks.codebook.copy_(vector_B16W[torch.arange(NUM_CODES), place_B])

    def encode(self, mask_BRR: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's vectors (B, 16, W), and the nearest code of each (B, 16)."""
        vector_BWSS: Tensor = self.encoder(mask_BRR[:, None])
        vector_B16W = vector_BWSS.flatten(2).movedim(1, 2)
        distance_B16K = torch.cdist(vector_B16W.detach(), self.masks.codebook.detach()[None])
        return vector_B16W, distance_B16K.argmin(-1)

    def loss(self, mask_BRR: Tensor) -> Tensor:
        """How far the decoded masks are from the masks, and the codes from the vectors."""
        vector_B16W, code_B16 = self.encode(mask_BRR)
        chosen_B16W = F.embedding(code_B16, self.masks.codebook)
        to_codes = F.mse_loss(chosen_B16W, vector_B16W.detach())
        to_vectors = F.mse_loss(vector_B16W, chosen_B16W.detach())
        # the gradient of the decoder's input goes to the encoder as if nothing was rounded
        straight_B16W = vector_B16W + (chosen_B16W - vector_B16W).detach()
        grid_BWSS = straight_B16W.movedim(1, 2).reshape(-1, CODE_WIDTH, SIDE, SIDE)
        decoded_BRR = self.masks.decoder(grid_BWSS).squeeze(1)
        return F.mse_loss(decoded_BRR, mask_BRR) + to_codes + COMMITMENT * to_vectors


class MaskTask(TrainingTask):
    """Learns to write the shapes of the drawings as codes, and to draw them from their codes."""

    def __init__(self, model: MaskAutoencoder, batch_size: int):
        self.model, self.batch_size = model, batch_size

    def batches(self, first: int, stop: int) -> Generator[tuple[Tensor]]:
        for step in range(first, stop):
            rng = Random(seed_of("masks", step))
            shapes = ((rng.choice(SHAPES), _tilt(rng)) for _ in range(self.batch_size))
            yield (masks_of(shapes),)

    def loss(self, batch: tuple[Tensor]) -> Loss:
        rows = len(batch[0])
        return Loss(self.model.loss(batch[0]) * rows, rows)

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and the mean IoU of shapes with the masks that are decoded from their codes."""
        rng = Random("masks that are not trained on")
        true_BRR = masks_of((rng.choice(SHAPES), _tilt(rng)) for _ in range(200))
        mask_BRR = self.model.masks(self.model.encode(true_BRR)[1]) > 0
        both, either = mask_BRR & (true_BRR > 0), mask_BRR | (true_BRR > 0)
        mean_iou = (both.sum((1, 2)) / either.sum((1, 2))).mean().item()
        return {"loss": self.model.loss(true_BRR).item(), "mean_iou": mean_iou}

    def rank(self, metrics: Mapping[str, float]) -> tuple[float, ...]:
        return (metrics["mean_iou"],)

    def save(self, folder: Path) -> None:
        """Write the file that `--mask-decoder` reads; the encoder's tensors are there too."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name.removeprefix("masks."): x for name, x in self.model.state_dict().items()}
        tensors[CODEBOOK] = tensors.pop("codebook")
        rounded = {name: x.to(torch.bfloat16).contiguous() for name, x in tensors.items()}
        save_file(rounded, folder / MASK_DECODER)


def mask_codes(folder: Path, resolution: float = TILT_RESOLUTION) -> MaskCodes:
    """The codes of every shape in every tilt, as text, by the autoencoder saved in the folder.

    They are those of the nearest multiple of the resolution: a coarse one has fewer codes to learn.
    """
    model = MaskAutoencoder()
    tensors = {name: x.float() for name, x in load_file(folder / MASK_DECODER).items()}
    tensors["codebook"] = tensors.pop(CODEBOOK)
    known = {n if n.startswith("encoder.") else f"masks.{n}": x for n, x in tensors.items()}
    model.load_state_dict(known)
    steps = round(TILT_DEGREES / TILT_STEP)
    keys = [(shape, step) for shape in SHAPES for step in range(-steps, steps + 1)]
    masks_BRR = masks_of(
        (shape, round(step * TILT_STEP / resolution) * resolution) for shape, step in keys
    )
    code_B16 = model.encode(masks_BRR)[1].tolist()
    texts = ("".join(f"<seg{code:03d}>" for code in row) for row in code_B16)
    return dict(zip(keys, texts, strict=True))


def masks_of(drawn: Iterable[tuple[str, float]]) -> Tensor:
    """The masks (B, R, R) of shapes with their tilts."""
    return torch.from_numpy(numpy.stack([shape_mask(shape, tilt) for shape, tilt in drawn]))


def _tilt(rng: Random) -> float:
    return rng.uniform(-TILT_DEGREES, TILT_DEGREES)
