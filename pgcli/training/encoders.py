"""Two towers and classifiers to train: from a checkpoint, or new ones with a learned tokenizer."""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor, nn

from pgcli.checkpoints.config import ModelDescription
from pgcli.checkpoints.families.encoders import FamilyName
from pgcli.checkpoints.files import IMAGE_PROCESSOR_FILES
from pgcli.checkpoints.preprocessing import Preprocessing, write_image_processor
from pgcli.checkpoints.save import copy_files
from pgcli.model.config import ClassifierConfig, TextConfig, TwoTowersConfig, VisionConfig
from pgcli.model.siglip import ImageClassifier, TwoTowers
from pgcli.towers.engine import encoder_config, read_model

ModelSize = Literal["tiny", "small", "base"]

#: Of the vision tower; small and base are ViT-S/16 and ViT-B/16, tiny trains on a CPU.
VISION: Mapping[ModelSize, VisionConfig] = MappingProxyType(
    {
        "tiny": VisionConfig(
            width=128, depth=4, mlp_dim=512, num_heads=4, patch_size=8, resolution=64
        ),
        "small": VisionConfig(
            width=384, depth=12, mlp_dim=1536, num_heads=6, patch_size=16, resolution=224
        ),
        "base": VisionConfig(
            width=768, depth=12, mlp_dim=3072, num_heads=12, patch_size=16, resolution=224
        ),
    }
)
#: Of the text tower: its depth, the length of texts, and the most tokens of its tokenizer.
TEXT_SIZES: Mapping[ModelSize, tuple[int, int, int]] = MappingProxyType(
    {"tiny": (2, 32, 4_000), "small": (12, 64, 16_000), "base": (12, 64, 32_000)}
)
#: The scale and bias at which SigLIP's training starts, before `exp` of the scale.
SIGLIP_SCALE, SIGLIP_BIAS = 10.0, -10.0
CLIP_SCALE = 1 / 0.07  # the initial scale of CLIP's training
RESIDUAL = ("out_proj", "fc2")  # the last layers of a residual branch
POSITION_STD = 0.02
CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>")
PAD, EOS = 0, 1
BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
ALPHABET = 1_000  # characters with a token; other characters are encoded as bytes


def new_two_towers(size: ModelSize, *, tokens: int, loss: str, seed: int) -> TwoTowers:
    """SigLIP's architecture with random weights, and the loss's initial scale and bias."""
    vision = VISION[size]
    depth, length, _ = TEXT_SIZES[size]
    text = TextConfig(
        width=vision.width,
        depth=depth,
        mlp_dim=vision.mlp_dim,
        num_heads=vision.num_heads,
        vocab_size=tokens,
        max_positions=length,
    )
    model = TwoTowers(TwoTowersConfig("siglip", vision, text, embedding_dim=vision.width))
    is_sigmoid = loss == "sigmoid"
    scale, bias = (SIGLIP_SCALE, SIGLIP_BIAS) if is_sigmoid else (CLIP_SCALE, 0.0)
    init_towers(model, seed=seed, scale=math.log(scale), bias=bias)
    return model


def new_classifier(size: ModelSize, labels: Sequence[str], *, seed: int) -> ImageClassifier:
    """ViT with random weights; the linear layer begins at zero."""
    vision = replace(VISION[size], class_token=True, activation="gelu", norm_eps=1e-12)
    model = ImageClassifier(ClassifierConfig("vit", vision, labels=tuple(labels)))
    init_towers(model, seed=seed)
    return _with_zero_head(model)


def two_towers_of(folder: Path, description: ModelDescription, device: torch.device) -> TwoTowers:
    """The two towers of a checkpoint in float32."""
    model = read_model(folder, description, dtype=torch.float32, device=device)
    assert isinstance(model, TwoTowers)
    return model.requires_grad_(requires_grad=True)


def classifier_of(
    folder: Path, description: ModelDescription, labels: Sequence[str], device: torch.device
) -> ImageClassifier:
    """A classifier with the vision tower of a checkpoint, in float32.

    Keeps the linear layer of a classifier with the same labels, in its order; else the layer is new
    and starts at zero.
    """
    config = encoder_config(description)
    loaded = read_model(folder, description, dtype=torch.float32, device=device)
    if isinstance(loaded, ImageClassifier) and set(loaded.config.labels) == set(labels):
        return loaded.requires_grad_(requires_grad=True)
    if isinstance(config, ClassifierConfig):
        family = config.family
    else:
        family = "clip" if config.family == "clip" else "siglip"
    model = ImageClassifier(ClassifierConfig(family, config.vision, tuple(labels)))
    model.vision = loaded.vision
    return _with_zero_head(model.to(device)).requires_grad_(requires_grad=True)


def _with_zero_head(model: ImageClassifier) -> ImageClassifier:
    """The model with a linear layer of zeros, as big_vision starts fine-tuning."""
    nn.init.zeros_(model.classifier.weight)
    nn.init.zeros_(model.classifier.bias)
    return model


def init_towers(model: nn.Module, *, seed: int, scale: float = 0.0, bias: float = 0.0) -> None:
    """Fill the parameters with random numbers that keep the variance of activations.

    Kernels have the standard deviation 1 / sqrt(inputs) (LeCun), divided at the end of residual
    branches by the square root of the branch count (GPT-2). `scale`, a logarithm, and `bias` are
    for the logits of two towers.
    """
    generator = torch.Generator().manual_seed(seed)

    def fill(parameter: Tensor, std: float) -> None:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    with torch.no_grad():
        for name, module in model.named_modules():
            branches = 2 * _depth(model, name) if name.endswith(RESIDUAL) else 1
            if isinstance(module, nn.Linear | nn.Conv2d):
                fill(module.weight, (module.weight[0].numel() * branches) ** -0.5)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                fill(module.weight, POSITION_STD)
            elif isinstance(module, nn.LayerNorm):
                module.weight.fill_(1)
                module.bias.zero_()
        for name, parameter in model.named_parameters():
            if name.endswith(("probe", "class_embedding")):
                fill(parameter, POSITION_STD)
            elif name.endswith("in_proj_weight"):
                fill(parameter, parameter.shape[1] ** -0.5)
            elif name.endswith("in_proj_bias"):
                parameter.zero_()
            elif name == "logit_scale":
                parameter.fill_(scale)
            elif name == "logit_bias":
                parameter.fill_(bias)


def _depth(model: nn.Module, name: str) -> int:
    """The number of layers in the module's tower; 1 outside of towers."""
    tower = dict(model.named_modules()).get(name.split(".")[0])
    layers = getattr(tower, "layers", None)
    return len(layers) if layers is not None else 1


def write_image_files(
    source: Path | None,
    folder: Path,
    family: FamilyName,
    resolution: int,
    preprocessing: Preprocessing,
) -> None:
    """Copy the image processor files of the checkpoint, or write an equivalent one."""
    if source is None or not copy_files(source, folder, IMAGE_PROCESSOR_FILES):
        write_image_processor(folder, family, resolution, preprocessing)


def learn_tokenizer(texts: Iterable[str], *, max_tokens: int) -> Tokenizer:
    """A byte-fallback BPE of lower-cased words, which ends each text with `<eos>`.

    No token spans words or punctuation. Equal texts in any order give equal tokenizers.
    """
    learner = _untrained(models.BPE(unk_token="<unk>"))
    trainer = trainers.BpeTrainer(
        vocab_size=max(0, max_tokens - len(CONTROL) - len(BYTES)),
        limit_alphabet=ALPHABET,
        show_progress=False,
    )
    learner.train_from_iterator(sorted(texts), trainer)
    learned = json.loads(learner.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    vocab = {piece: index for index, piece in enumerate((*CONTROL, *BYTES, *pieces))}
    merges = [(first, second) for first, second in learned["merges"]]
    tokenizer = _untrained(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in CONTROL])
    return tokenizer


def _untrained(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [
            # like `canonical_text`, so every program that reads the file makes the same tokens
            normalizers.Replace("_", " "),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(f"[{re.escape(string.punctuation)}]"), ""),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
            normalizers.NFKC(),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            pre_tokenizers.Punctuation("isolated"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", EOS)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def write_tokenizer(folder: Path, tokenizer: Tokenizer, *, max_positions: int) -> None:
    """Write the tokenizer as transformers reads it, for SigLIP."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    control = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    values = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "processor_class": "SiglipProcessor",
        **control,
        "model_max_length": max_positions,
        "padding_side": "right",
        "do_lower_case": True,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(values, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
