"""Texts get the same tokens as from transformers' tokenizers, padded on the right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pgcli.checkpoints.config import read_description
from pgcli.checkpoints.find import Checkpoint
from pgcli.errors import InvalidCheckpoint
from pgcli.towers.engine import TextProcessor, canonical_text, open_towers, text_processor
from tests.support import towers

TEXTS = [
    "a red star",
    "A Small, RED star! (isn't it?)",
    "  two  blanks\tand\nlines  ",
    "a polar_bear, 3 x 27 é ﬁ ½ 日本語 🟥",
    "one text that is much longer than what the text tower has positions for " * 3,
    "",
    "...",
]
LENGTH = towers.TEXT_LENGTH


def processor_of(folder: Path) -> TextProcessor:
    return text_processor(folder, read_description(folder))


def expected_tokens(tokenizer: Any, texts: list[str]) -> torch.Tensor:
    """transformers' tokens, padded as the documentation of SigLIP and CLIP says."""
    tokens: torch.Tensor = tokenizer(
        texts,
        padding="max_length",
        padding_side="right",
        max_length=LENGTH,
        truncation=True,
        return_tensors="pt",
    ).input_ids
    return tokens


@pytest.fixture(scope="module", params=["siglip", "siglip2", "clip"])
def kind(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind, tmp_path_factory) -> Path:
    return towers.checkpoint_into(tmp_path_factory.mktemp(kind), kind)


def test_text_tokens_equal_transformers(kind, folder):
    processor = processor_of(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = processor(TEXTS, raw=True)
    assert torch.equal(found, expected_tokens(tokenizer, TEXTS))
    cleaned = [processor.format.clean(text) for text in TEXTS]
    assert torch.equal(processor(TEXTS), expected_tokens(tokenizer, cleaned))
    assert (cleaned == TEXTS) == (kind == "clip")


@pytest.mark.parametrize("raw", [True, False])
def test_truncated_texts_match_transformers(kind, folder, raw):
    processor = processor_of(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ends = len(tokenizer("").input_ids) or 1  # the start and the end token
    words = ["star"] * (LENGTH + 2)
    texts = [*TEXTS, *(" ".join(words[:n]) for n in range(1, len(words)))]
    cleaned = texts if raw else [processor.format.clean(text) for text in texts]
    lengths = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in cleaned]
    expected = {text for text, n in zip(texts, lengths, strict=True) if n + ends > LENGTH}
    assert processor.truncated(texts, raw=raw) == expected
    assert TEXTS[4] in expected
    assert "a red star" not in expected


def test_typed_control_tokens_are_text(kind, folder):
    if kind == "siglip":
        return  # a piece of its vocabulary, which cleaning reduces to s
    processor = processor_of(folder)
    typed = processor([f"a {name} star" for name in ("<eos>", "</s>", "<|endoftext|>")], raw=True)
    control = torch.tensor([processor.format.eos, processor.format.pad])
    for row in typed:
        kept = row[: int((row != processor.format.pad).sum()) - 1]
        assert not torch.isin(kept[:-1], control).any()


def test_underscores_are_spaces_for_siglip_2(kind, folder):
    """transformers' tokenizer of SigLIP 1 removes underscores, big_vision's makes them spaces."""
    clean = processor_of(folder).format.clean("polar_bear")
    assert clean == {"siglip": "polarbear", "siglip2": "polar bear", "clip": "polar_bear"}[kind]
    assert canonical_text(" A  polar_bear! ") == "a polar bear"


def tokenizer_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "tokenizer.json").read_text())


def test_slow_regular_expression_is_rejected(tmp_path):
    folder = towers.checkpoint_into(tmp_path, "clip")
    values = tokenizer_of(folder)
    values["normalizer"] = {"type": "Replace", "pattern": {"Regex": "(a+)+b"}, "content": ""}
    (folder / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(InvalidCheckpoint, match="with a regular expression that may be slow"):
        processor_of(folder)


def test_tokenizer_of_another_model_is_rejected(tmp_path):
    folder = towers.checkpoint_into(tmp_path, "clip")
    towers.tokenizer_into(folder, "siglip")
    with pytest.raises(InvalidCheckpoint, match=r"has no token '<\|endoftext\|>'"):
        processor_of(folder)
    folder = towers.checkpoint_into(tmp_path / "2", "siglip")
    towers.tokenizer_into(folder, "siglip2")
    with pytest.raises(InvalidCheckpoint, match=r"the tokenizer has \d+ tokens, the model "):
        processor_of(folder)


def test_towers_without_a_tokenizer_embed_images_only(tmp_path):
    folder = towers.checkpoint_into(tmp_path / "model", "siglip")
    (folder / "tokenizer.json").unlink()
    engine = open_towers(Checkpoint("tiny", folder), device="cpu", batch_size=2)
    assert engine.embedding_dim > 0
    with pytest.raises(InvalidCheckpoint, match=r"tiny has no tokenizer\.json"):
        engine.encode_texts(["a red circle"])
