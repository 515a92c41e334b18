"""The built-in tokenizer: Gemma's form and ids, and the same ids in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from tokenizers import Tokenizer

from examples.demo_model.build_tokenizer import SPACE, WORD, build_tokenizer
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


def test_building_twice_gives_identical_files(
    folder: Path, tmp_path: Path, texts: list[str]
) -> None:
    build_tokenizer(tmp_path, iter(texts), resolution=112, image_tokens=IMAGE_TOKENS)
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


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


def test_only_control_tokens_and_the_image_are_flagged_special(folder: Path) -> None:
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    special = {token["content"] for token in added if token["special"]}
    assert {"<pad>", "<eos>", "<bos>", "<image>", "<end_of_turn>"} <= special
    assert not any(name.startswith(("<loc", "<seg", "\n")) for name in special)


def test_every_word_of_the_drawings_is_one_token(tokenizer: Tokenizer, texts: list[str]) -> None:
    plain = [text for text in texts if "<" not in text]
    words = {word for text in plain for word in WORD.findall(text.replace(" ", SPACE))}
    assert len(words) > 100
    assert [word for word in words if len(ids(tokenizer, word.replace(SPACE, " "))) != 1] == []


def test_an_answer_with_boxes_has_four_tokens_a_box_and_one_a_word(tokenizer: Tokenizer) -> None:
    answer = "<loc0001><loc0020><loc0300><loc1023> red circle ; " + "<loc0000>" * 4 + " star"
    assert tokenizer.encode(answer, add_special_tokens=False).tokens == [
        *("<loc0001>", "<loc0020>", "<loc0300>", "<loc1023>", "▁red", "▁circle", "▁;", "▁"),
        *("<loc0000>", "<loc0000>", "<loc0000>", "<loc0000>", "▁star"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "three red circles on a grey background",
        "Grüße, 你好 — naïve café №5\tx",
        "👩‍👩‍👧 🟥 emoji 🇨🇭",
        "  two  spaces  ",
        "line\nline\n\nline",
        "▲▼ \x00\x7f",
        "",
    ],
)
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text
    assert 3 not in ids(tokenizer, text)  # never unknown


@pytest.mark.parametrize("special", ["<loc0001>", "<seg001>", "<image>", "<eos>", "<mask>"])
def test_special_token_typed_in_two_parts_stays_text(tokenizer: Tokenizer, special: str) -> None:
    pieces = [*ids(tokenizer, special[:4]), *ids(tokenizer, special[4:])]
    assert tokenizer.token_to_id(special) not in pieces
    assert tokenizer.decode(pieces, skip_special_tokens=False) == special


@pytest.mark.parametrize("automatic", [False, True])
@pytest.mark.parametrize("prompt", ["detect red circle", "caption en", "how many? 🟥", "a\n\nb"])
def test_transformers_gives_the_same_ids(
    folder: Path, tokenizer: Tokenizer, prompt: str, automatic: bool
) -> None:
    transformers = pytest.importorskip("transformers")
    (folder / "config.json").write_text(json.dumps({"model_type": "paligemma"}))
    reader = transformers.AutoProcessor if automatic else transformers.PaliGemmaProcessor
    processor = reader.from_pretrained(folder)
    inputs = processor(images=Image.new("RGB", (50, 30)), text="<image>" + prompt)
    image = tokenizer.token_to_id("<image>")
    by_hand = [image] * IMAGE_TOKENS + [BOS, *ids(tokenizer, prompt), NEWLINE]
    assert [int(i) for i in inputs["input_ids"][0]] == by_hand
    assert tuple(inputs["pixel_values"][0].shape) == (3, 112, 112)
    assert len(processor.tokenizer) == tokenizer.get_vocab_size()
    assert processor.tokenizer.padding_side == "left"
    assert processor.tokenizer.decode(ids(tokenizer, prompt)) == prompt


def test_transformers_writes_back_the_same_tokenizer(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.GemmaTokenizer.from_pretrained(folder).save_pretrained(tmp_path)
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert again.get_vocab() == tokenizer.get_vocab()
    ours, theirs = (json.loads(t.to_str()) for t in (tokenizer, again))
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        assert theirs[part] == ours[part]
