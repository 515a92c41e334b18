"""The built-in tokenizer has Gemma's form and ids, and a token for every word of the drawings."""

from __future__ import annotations

from random import Random

import pytest
from tokenizers import Tokenizer

from examples.demo_model.questions import draw_examples
from examples.demo_model.scenes import TOKENIZER_SEEDS, Scene
from pgcli.checkpoints.find import BUILTIN

NEWLINE = 108


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))


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


def test_every_word_of_the_drawings_is_a_token(tokenizer: Tokenizer) -> None:
    for seed in TOKENIZER_SEEDS[:100]:
        for example in draw_examples(Scene.from_seed(seed), Random(seed)):
            words = [word for word in example.prefix.split()[1:] if word.isalpha()]
            assert [len(ids(tokenizer, f" {word}")) for word in words] == [1] * len(words), words
