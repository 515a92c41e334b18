"""A vector-quantised autoencoder of masks: 64 x 64 pixels as 16 codes, as PaliGemma's.

B masks · R resolution · W width of a code · K codes
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from examples.demo_model.scenes import SHAPES, TILT_DEGREES, outline
from pgcli.checkpoints.find import MASK_DECODER
from pgcli.checkpoints.mask_decoder import CODEBOOK
from pgcli.model.mask_decoder import NUM_CODES, RESOLUTION, SIDE, MaskDecoder
from pgcli.training.seeds import seed_of
from pgcli.training.task import Loss, MicroBatches

CODE_WIDTH = 32
COMMITMENT = 0.25  # weight of the loss that keeps the encoder's output near its code
SUPERSAMPLING = 4


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


@dataclass
class MaskTask:
    """Learns to write the shapes of the drawings as codes, and to draw them from their codes."""

    model: MaskAutoencoder
    batch_size: int
    micro_batches: MicroBatches = field(default_factory=lambda: MicroBatches(is_fixed=True))

    def batches(self, first: int, stop: int) -> Generator[Tensor]:
        for step in range(first, stop):
            rng = Random(seed_of("masks", step))
            yield masks_of((rng.choice(SHAPES), _tilt(rng)) for _ in range(self.batch_size))

    def size(self, batch: Tensor) -> int:
        return len(batch)

    def parts(self, batch: Tensor, largest: int) -> list[Tensor]:
        return [batch]

    def loss(self, part: Tensor) -> Loss:
        return Loss(self.model.loss(part) * len(part), len(part))

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and the mean IoU of shapes with the masks that are decoded from their codes."""
        rng = Random("masks that are not trained on")
        true_BRR = masks_of((rng.choice(SHAPES), _tilt(rng)) for _ in range(200))
        found_BRR = self.model.masks(self.model.encode(true_BRR)[1]) > 0
        both, either = found_BRR & (true_BRR > 0), found_BRR | (true_BRR > 0)
        return {
            "loss": self.model.loss(true_BRR).item(),
            "mean_iou": (both.sum((1, 2)) / either.sum((1, 2))).mean().item(),
            "codes": len(set(self.model.encode(true_BRR)[1].flatten().tolist())),
        }

    def rank(self, found: Mapping[str, float]) -> tuple[float, ...]:
        return (found["mean_iou"],)

    def save(self, folder: Path) -> None:
        """Write the file that `--mask-decoder` reads; the encoder's tensors are there too."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"encoder.{name}": one for name, one in self.model.encoder.state_dict().items()}
        for name, one in self.model.masks.state_dict().items():
            tensors[CODEBOOK if name == "codebook" else name] = one
        save_file(
            {k: v.to(torch.bfloat16).contiguous() for k, v in tensors.items()},
            folder / MASK_DECODER,
        )


def load_autoencoder(folder: Path) -> MaskAutoencoder:
    """The autoencoder that MaskTask saved in the folder."""
    model = MaskAutoencoder()
    tensors = {name: one.float() for name, one in load_file(folder / MASK_DECODER).items()}
    model.masks.codebook.data.copy_(tensors.pop(CODEBOOK))
    names = {name: f"masks.{name}" for name in tensors if name.startswith("decoder.")}
    weights = {names.get(name, name): one for name, one in tensors.items()}
    model.load_state_dict({**weights, "masks.codebook": model.masks.codebook.data})
    return model.eval()


def masks_of(drawn: Iterable[tuple[str, float]]) -> Tensor:
    """The masks (B, R, R) of shapes with their tilts."""
    return torch.from_numpy(numpy.stack([shape_mask(shape, tilt) for shape, tilt in drawn]))


def _tilt(rng: Random) -> float:
    return rng.uniform(-TILT_DEGREES, TILT_DEGREES)
