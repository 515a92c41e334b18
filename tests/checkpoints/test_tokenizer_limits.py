"""A tokenizer.json that could take any amount of memory or time is refused before it is used."""

import base64
import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import BertTokenizer, CLIPTokenizer, GemmaTokenizer, T5Tokenizer

from pgcli.checkpoints import tokenizer as tokenizer_limits
from pgcli.checkpoints.find import builtin_models
from pgcli.checkpoints.tokenizer import open_tokenizer
from pgcli.cli.main import main
from pgcli.errors import InvalidCheckpoint

Values = dict[str, Any]


def replace(pattern: str, content: str) -> Values:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def sequence(part: str, *steps: Values) -> Values:
    return {"type": "Sequence", tokenizer_limits.PARTS[part][0]: list(steps)}


def template(single: list[Values], ids: list[int]) -> Values:
    """Adds these ids to a text where its pieces name the token."""
    token = {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [TEXT, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": token},
    }


def charsmap(text: bytes) -> Values:
    """Precompiled, with a table whose trie is empty and whose texts are these."""
    table = (4).to_bytes(4, "little") + bytes(4) + text
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TOKEN = {"SpecialToken": {"id": "<s>", "type_id": 0}}
GROWING = replace("a", "a" * 10)
REGEX = {"type": "Replace", "pattern": {"Regex": "[a-z]"}, "content": "ab"}


@pytest.fixture
def opened(tmp_path) -> Callable[..., Any]:
    """Opens a folder with a small tokenizer.json, of which some values are changed."""

    def opened(**changes: Any) -> Any:
        model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "<unk>": 2}, "merges": []}
        values: Values = {"version": "1.0", "added_tokens": [], "model": model} | changes
        values["model"] = model | changes.get("model", {})
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
        return open_tokenizer(tmp_path)

    return opened


@pytest.mark.parametrize("part", tokenizer_limits.PARTS)
def test_kinds_that_no_known_tokenizer_has_are_refused(opened, part):
    for step in ({"type": "Prepend", "prepend": "x" * 9}, {"type": "CTC", "pad_token": "a"}):
        with pytest.raises(InvalidCheckpoint, match=f"has the {part} {step['type']}, which Gemma"):
            opened(**{part: step})
        with pytest.raises(InvalidCheckpoint, match=f"has the {part} {step['type']}, which Gemma"):
            opened(**{part: sequence(part, step)})
    with pytest.raises(InvalidCheckpoint, match=f"has the {part} Sequence, which Gemma"):
        opened(**{part: sequence(part, sequence(part))})
    with pytest.raises(InvalidCheckpoint, match=f"has 17 steps in its {part}"):
        opened(**{part: sequence(part, *[{"type": "ByteLevel"}] * 17)})
    with pytest.raises(InvalidCheckpoint, match="is not a tokenizer"):
        opened(**{part: {"pattern": {"String": "a"}, "content": "a" * 10}})  # without a type


@pytest.mark.parametrize(
    ("part", "step", "message"),
    [
        ("normalizer", GROWING, "Replace that makes texts longer"),
        ("normalizer", replace("ab", "aba"), "Replace that makes texts longer"),
        ("normalizer", replace("", ""), "Replace that makes texts longer"),
        ("normalizer", REGEX, "Replace that makes texts longer"),
        ("normalizer", replace("a" * 2000, "b"), "Replace of over 2000 characters"),
        ("normalizer", charsmap(b"a\0" + b"b" * 65), "replaces a character by over 64 bytes"),
        ("decoder", GROWING, "Replace that makes texts longer"),
        ("decoder", REGEX, "Replace that makes texts longer"),
        (
            "pre_tokenizer",
            {"type": "Split", "pattern": {"Regex": "(a|a)+$"}, "behavior": "Removed"},
            "Split with a regular expression that may be slow",
        ),
        ("post_processor", template([TEXT, TEXT], [0]), "TemplateProcessing that repeats texts"),
        ("post_processor", template([TOKEN] * 1000, [0]), "TemplateProcessing of over 2000"),
        ("post_processor", template([TEXT, TOKEN], [0] * 1000), "TemplateProcessing of over 2000"),
    ],
)
def test_steps_that_make_texts_longer_are_refused(opened, part, step, message):
    for value in (step, sequence(part, step), sequence(part, *[step] * 6)):
        with pytest.raises(InvalidCheckpoint, match=message):
            opened(**{part: value})


def added(content: str, token_id: int = 3) -> Values:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": True} | flags


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"added_tokens": [added("x" * 257)]}, "a token of over 256 characters"),
        ({"model": {"vocab": {"x" * 257: 0}}}, "a token of over 256 characters"),
        ({"model": {"type": "Unigram", "vocab": [["x" * 257, 0.0]]}}, "a token of over 256"),
        ({"model": {"end_of_word_suffix": "x" * 65}}, "adds long texts to words"),
        ({"model": {"continuing_subword_prefix": "x" * 65}}, "adds long texts to words"),
        (
            {"model": {"type": "WordPiece", "max_input_chars_per_word": 10**9}},
            "words of over 1000 characters",
        ),
    ],
)
def test_long_tokens_and_words_are_refused(opened, changes, message):
    with pytest.raises(InvalidCheckpoint, match=message):
        opened(**changes)


def test_the_characters_of_all_tokens_are_limited(opened, monkeypatch):
    monkeypatch.setattr(tokenizer_limits, "MAX_VOCABULARY", 100)
    opened(added_tokens=[added("x" * 93)])
    with pytest.raises(InvalidCheckpoint, match="or 100 in all tokens"):
        opened(added_tokens=[added("x" * 50), added("y" * 50, 4)])


def test_a_repeated_key_is_refused(opened, tmp_path):
    """Of two normalizers, the library might use the other one."""
    opened()
    file = tmp_path / "tokenizer.json"
    text = json.dumps({"normalizer": GROWING})[1:-1] + ", " + json.dumps({"normalizer": None})[1:]
    file.write_text(file.read_text()[:-1] + ", " + text)
    with pytest.raises(InvalidCheckpoint, match="a key is repeated"):
        open_tokenizer(tmp_path)


def test_a_command_refuses_the_tokenizer_with_16(opened, tmp_path, capsys):
    for file in builtin_models()["demo"].iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(InvalidCheckpoint):
        opened(normalizer=sequence("normalizer", *[GROWING] * 6))
    image = Path(__file__).parents[2] / "examples" / "images" / "one.png"
    assert main(["caption", str(image), "--model", str(tmp_path)]) == 16
    assert "has the normalizer Replace that makes texts longer" in capsys.readouterr().err


CLIP = ["<|startoftext|>", "<|endoftext|>", *string.ascii_lowercase]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##s"]
T5 = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁a", -1.0)]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "a", "▁"]


def numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: CLIPTokenizer(vocab=numbered(CLIP), merges=[]),
        lambda: BertTokenizer(vocab=numbered(BERT)),
        lambda: T5Tokenizer(vocab=T5),  # SigLIP's kind
        lambda: GemmaTokenizer(vocab=numbered(GEMMA), merges=[]),
    ],
    ids=["CLIP", "BERT", "T5", "Gemma"],
)
def test_tokenizers_that_transformers_writes_are_accepted(tmp_path, make):
    own = make()
    own.save_pretrained(tmp_path)
    text = "A  photo of 2 cats,\ta dog"
    assert open_tokenizer(tmp_path).encode(text).ids == own(text).input_ids


def test_steps_of_siglips_tokenizers_are_accepted(opened):
    steps = [{"type": "Lowercase"}, {"type": "NFKC"}, replace(" ", "▁")]
    for pattern, content in ((r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]\^_`{|}~]", ""), (" {2,}", "▁")):
        steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
    found = opened(
        normalizer=sequence("normalizer", *steps),
        post_processor=template([TEXT, TOKEN], [2]),
        model={"vocab": {"a": 0, "b": 1, "<unk>": 2, "▁": 3}},
    )
    assert found.encode("A, b!").ids == [0, 3, 1, 2]
