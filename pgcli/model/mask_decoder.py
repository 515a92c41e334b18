"""The decoder of big_vision's VQ-VAE: 16 mask codes in, a mask of 64 x 64 pixels out.

B masks · D code width · R resolution
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NUM_CODES = 128
SIDE = 4  # the codes form a 4 x 4 grid, row by row
RESOLUTION = 64  # pixels: four layers double the grid
WIDTH = 128


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions and one 1 x 1, with a residual connection."""

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
    """The codebook and the decoder; the encoder is not needed for answers.

    The order of the layers gives them the names of the published file (`decoder.2.net.0.weight`).
    """

    def __init__(self, code_width: int):
        super().__init__()
        self.codebook = nn.Parameter(torch.empty(NUM_CODES, code_width))
        layers = [nn.Conv2d(code_width, WIDTH, kernel_size=1), nn.ReLU()]
        layers += [ResidualBlock(WIDTH), ResidualBlock(WIDTH)]
        for width in (WIDTH, WIDTH // 2, WIDTH // 4, WIDTH // 8):
            wider = min(2 * width, WIDTH)
            layers += [nn.ConvTranspose2d(wider, width, kernel_size=4, stride=2, padding=1)]
            layers += [nn.ReLU()]
        self.decoder = nn.Sequential(*layers, nn.Conv2d(WIDTH // 8, 1, kernel_size=1))

    def forward(self, code_B16: Tensor) -> Tensor:
        """The masks (B, 64, 64) in float32, about -1 to 1; above 0 is the object.

        With float64 weights a mask does not depend on the batch: differences in summation order
        are rounded away in float32.
        """
        code_B44D = F.embedding(code_B16.reshape(-1, SIDE, SIDE), self.codebook)
        out_B1RR: Tensor = self.decoder(code_B44D.movedim(-1, 1))
        return out_B1RR.squeeze(1).to(torch.float32)
