"""Mask codes -> pixels: the decoder of big_vision's VQ-VAE, 16 codes in, a 64 x 64 mask out.

B masks · D width of a code
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_CODES = 128
SIDE = 4  # codes, row by row
RESOLUTION = 64  # pixels: four times doubled
WIDTH = 128


class Residual(nn.Module):
    """Two 3 x 3 convolutions and a 1 x 1, added to what came in."""

    def __init__(self, width: int):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(width, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, kernel_size=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.net(x)
        return out


class MaskDecoder(nn.Module):
    """The codebook and the decoder; the encoder, which makes codes, has no part in answers.

    The layers stand in the published file's order, so that its names (`decoder.2.net.0.weight`)
    are theirs.
    """

    def __init__(self, code_width: int):
        super().__init__()
        self.codebook = nn.Parameter(torch.empty(NUM_CODES, code_width))
        layers = [nn.Conv2d(code_width, WIDTH, kernel_size=1), nn.ReLU()]
        layers += [Residual(WIDTH), Residual(WIDTH)]
        for width in (WIDTH, WIDTH // 2, WIDTH // 4, WIDTH // 8):
            wider = min(2 * width, WIDTH)
            layers += [nn.ConvTranspose2d(wider, width, kernel_size=4, stride=2, padding=1)]
            layers += [nn.ReLU()]
        self.decoder = nn.Sequential(*layers, nn.Conv2d(WIDTH // 8, 1, kernel_size=1))

    def forward(self, code_B16: Tensor) -> Tensor:
        """The masks (B, 64, 64) as float32, in about -1 to 1: above 0 lies the object.

        With weights of float64 a mask is the same in any company: what float32's order of
        summation would move, here rounds away.
        """
        code_B44D = F.embedding(code_B16.reshape(-1, SIDE, SIDE), self.codebook)
        out_B1RR: Tensor = self.decoder(code_B44D.movedim(-1, 1))
        return out_B1RR.squeeze(1).to(torch.float32)
