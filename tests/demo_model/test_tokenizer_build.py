"""The built-in tokenizer: Gemma's form and ids, and the same ids in transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from examples.demo_model.build_tokenizer import build_tokenizer
from examples.demo_model.examples import tokenizer_corpus
from examples.demo_model.scenes import TOKENIZER_SEEDS

IMAGE_TOKENS = 64
BOS, NEWLINE = 2, 108


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(tokenizer_corpus(TOKENIZER_SEEDS[:600]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    build_tokenizer(folder, texts, resolution=112, image_tokens=IMAGE_TOKENS)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_special_ids_are_gemmas(tokenizer: Tokenizer) -> None:
    gemma = {
        "<pad>": 0,
        "<eos>": 1,
        "<bos>": 2,
        "<unk>": 3,
        "<mask>": 4,
        "<2mass>": 5,
        "[@BOS@]": 6,
        "<unused0>": 7,
        "<unused98>": 105,
        "<start_of_turn>": 106,
        "<end_of_turn>": 107,
        "\n": 108,
        "\n\n": 109,
    }
    assert {name: tokenizer.token_to_id(name) for name in gemma} == gemma
    assert ids(tokenizer, "\n") == [NEWLINE]


def test_locations_and_mask_codes_are_contiguous_and_the_image_is_last(
    tokenizer: Tokenizer,
) -> None:
    first = tokenizer.token_to_id("<loc0000>")
    names = [f"<loc{i:04d}>" for i in range(1024)] + [f"<seg{i:03d}>" for i in range(128)]
    assert [tokenizer.token_to_id(name) for name in names] == list(range(first, first + 1152))
    assert tokenizer.token_to_id("<image>") == first + 1152 == tokenizer.get_vocab_size() - 1
    assert ids(tokenizer, "".join(names)) == list(range(first, first + 1152))
    assert tokenizer.decode(list(range(first, first + 1152))) == "".join(names)
