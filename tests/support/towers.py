"""Two towers and classifiers, tiny and random, and files of vectors as `embed` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import tokenizers
import torch
import transformers
from pyarrow import parquet
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers
from torch import nn

from pgcli.checkpoints.config import read_description
from pgcli.checkpoints.weights import load_encoder

TINY = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
TINY_IMAGE = {"image_size": 32, "patch_size": 8}
BASE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
BASE_IMAGE = {"image_size": 224, "patch_size": 16}
LABELS = {"id2label": {0: "circle", 1: "square", 2: "star"}}
TEXT_LENGTH = 16
#: The training texts of the tokenizers.
SENTENCES = [
    f"a {size} {colour} {shape} {place} the image, isn't it?"
    for size in ("small", "large")
    for colour in ("red", "blue", "green", "yellow")
    for shape in ("circle", "square", "star", "triangle")
    for place in ("in", "left of", "above", "below")
]
#: The kinds of `checkpoint_into`.
KINDS = (
    "siglip",
    "siglip2",
    "clip",
    "siglip_vision_model",
    "vit",
    "siglip_classifier",
    "clip_classifier",
)


def load_from(folder: Path) -> Any:
    """The model of a checkpoint, in float32."""
    description = read_description(folder)
    return load_encoder(folder, description.config, description.names, dtype=torch.float32)


def spread(model: nn.Module) -> Any:
    """Random weights large enough for the layers to matter; biases and norms vary too."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("logit_scale", "logit_bias"):
                parameter.fill_(2.0 if name == "logit_scale" else -3.0)
            elif parameter.ndim > 1 and "embed" not in name and "probe" not in name:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def reference(
    kind: str,
    *,
    sizes: dict[str, int] = TINY,
    image: dict[str, int] = TINY_IMAGE,
    seed: int = 0,
    **text: Any,
) -> Any:
    """transformers' model of one of the KINDS with random weights; `text` configures its text."""
    torch.manual_seed(seed)
    family = kind.partition("_")[0].removesuffix("2")
    if kind == "vit":
        return spread(
            transformers.ViTForImageClassification(
                transformers.ViTConfig(**sizes, **image, **LABELS)
            )
        )
    if kind == "siglip_vision_model":
        config = transformers.SiglipVisionConfig(**sizes, **image)
        return spread(transformers.SiglipVisionModel(config))
    configs: dict[str, Any] = {
        "vision_config": sizes | image,
        "text_config": sizes | {"vocab_size": 60, "max_position_embeddings": TEXT_LENGTH} | text,
    }
    if kind.endswith("_classifier"):
        configs |= LABELS
    if family == "clip":
        config = transformers.CLIPConfig(**configs, projection_dim=40)
    else:
        config = transformers.SiglipConfig(**configs)
    models_of = {
        ("siglip", False): transformers.SiglipModel,
        ("siglip", True): transformers.SiglipForImageClassification,
        ("clip", False): transformers.CLIPModel,
        ("clip", True): transformers.CLIPForImageClassification,
    }
    return spread(models_of[family, kind.endswith("_classifier")](config))


def checkpoint_into(
    folder: Path,
    kind: str = "siglip",
    *,
    sizes: dict[str, int] = TINY,
    image: dict[str, int] = TINY_IMAGE,
    seed: int = 0,
) -> Path:
    """Write a complete checkpoint: configuration, random weights, tokenizer and preprocessing."""
    folder.mkdir(parents=True, exist_ok=True)
    text: dict[str, Any] = {}
    if kind in ("siglip", "siglip2", "clip"):
        tokenizer = tokenizer_into(folder, kind)
        text["vocab_size"] = tokenizer.get_vocab_size()
        if kind == "clip":
            text["eos_token_id"] = tokenizer.token_to_id("<|endoftext|>")
    model = reference(kind, sizes=sizes, image=image, seed=seed, **text)
    model.save_pretrained(folder)
    image_processor(kind, image["image_size"]).save_pretrained(folder)
    return folder


def image_processor(kind: str, side: int) -> Any:
    """transformers' image processor of a kind, which uses Pillow."""
    square = {"height": side, "width": side}
    if kind.startswith("clip"):
        return transformers.CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=square)
    if kind == "vit":
        return transformers.ViTImageProcessorPil(size=square)
    return transformers.SiglipImageProcessorPil(size=square)


def tokenizer_into(folder: Path, kind: str) -> tokenizers.Tokenizer:
    """Write `tokenizer.json` and its settings as in SigLIP, SigLIP 2 or CLIP."""
    makers = {"siglip": siglip_tokenizer, "siglip2": gemma_tokenizer, "clip": clip_tokenizer}
    tokenizer, settings = makers[kind]()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings["model_max_length"] = TEXT_LENGTH
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def siglip_tokenizer() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A SentencePiece unigram model that ends and pads texts with `</s>`."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<unk>", "</s>"],
        unk_token="<unk>",
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz0123456789"),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text.replace(",", "") for text in SENTENCES], trainer)
    eos = tokenizer.token_to_id("</s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", eos)]
    )
    return tokenizer, {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "unk_token": "<unk>",
    }


def gemma_tokenizer() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """A tokenizer like Gemma's, as in SigLIP 2: BPE, no bos, `<eos>`, padding with `<pad>`."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{n:02X}>" for n in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SENTENCES, *map(str.upper, SENTENCES)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return tokenizer, {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "padding_side": "left",  # the tokenizer's own default, which is not SigLIP 2's
    }


def clip_tokenizer() -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """CLIP's byte-pair encoding, lower-case, with its start and end tokens."""
    tokenizer = transformers.CLIPTokenizer().backend_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    trained = json.loads(tokenizer.to_str())["model"]
    begin, end = "<|startoftext|>", "<|endoftext|>"
    pieces = [*trained["vocab"], *(f"{byte}</w>" for byte in alphabet), begin, end]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    merges = [tuple(pair) for pair in trained["merges"]]
    tokenizer = transformers.CLIPTokenizer(vocab=vocabulary, merges=merges).backend_tokenizer
    return tokenizer, {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": end,
        "unk_token": end,
    }


def unit(rows, width=6, seed=0):
    """Random vectors of length 1."""
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows_of(vectors, first=0, model="towers@1"):
    """A row for each vector; an error row for None."""
    return [
        {
            "index": number,
            "id": f"{number}.jpg",
            "image": f"photos/{number}.jpg",
            "model": model,
            "error": None if vector is not None else "missing",
            "embedding": None if vector is None else [float(value) for value in vector],
        }
        for number, vector in enumerate(vectors, start=first)
    ]


def write_jsonl(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_parquet(file, rows, kind=None, **options):
    """Write the rows, with vectors as lists of this kind, by default of a fixed size."""
    width = next(len(row["embedding"]) for row in rows if row["embedding"] is not None)
    kind = kind or pyarrow.list_(pyarrow.float32(), width)
    rows = [dict(row) for row in rows]
    if kind.value_type == pyarrow.float16():
        for row in rows:
            vector = row["embedding"]
            row["embedding"] = None if vector is None else np.array(vector, np.float16)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "embedding"}
    table = pyarrow.table(columns)
    vectors = pyarrow.array([row["embedding"] for row in rows], kind)
    parquet.write_table(table.append_column("embedding", vectors), file, **options)
    return file
