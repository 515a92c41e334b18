"""Image classifiers: a vision tower and one linear layer.

B images · P patches (and the class token) · D width · K classes
"""

from __future__ import annotations

from torch import Tensor, nn

from pgcli.model.config import ClassifierConfig
from pgcli.model.siglip import SiglipVisionModel


class ImageClassifier(nn.Module):
    """ViT, and SigLIP and CLIP with a classification head."""

    def __init__(self, config: ClassifierConfig):
        super().__init__()
        self.config = config
        self.vision = SiglipVisionModel(config.vision)
        self.classifier = nn.Linear(config.vision.width, len(config.labels))

    def forward(self, pixels_BCRR: Tensor) -> Tensor:
        """Logits (B, K) of normalized images."""
        out_BK: Tensor = self.classifier(self.features(pixels_BCRR))
        return out_BK

    def features(self, pixels_BCRR: Tensor) -> Tensor:
        """The inputs (B, D) of the head: class tokens, or means of the patches."""
        if self.config.family != "clip":
            x_BPD: Tensor = self.vision(pixels_BCRR)
            return x_BPD[:, 0] if self.config.family == "vit" else x_BPD.mean(dim=1)
        return self.vision.last_layer(pixels_BCRR)[:, 1:].mean(dim=1)
