"""The tokenizer: user text, spans of an answer, padding, and invalid tokenizer files."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tokenizers import AddedToken, models, processors
from transformers import PaliGemmaProcessor

from pgcli.checkpoints.find import BUILTIN
from pgcli.engine.tokenizer import Tokenizer, left_pad
from pgcli.errors import InvalidCheckpoint
from pgcli.records import Span
from tests.support.tiny import PATCHES

BOS, NEWLINE = 2, 108


@pytest.fixture(scope="module")
def file_tokenizer() -> tokenizers.Tokenizer:
    """The built-in model's tokenizer, which has Gemma's format."""
    return tokenizers.Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))


@pytest.fixture(scope="module")
def tokenizer(file_tokenizer) -> Tokenizer:
    return Tokenizer(file_tokenizer)


# --- user text

FRAGMENTS = ["<", ">", "loc", "0001", "<loc0001>", "<seg1", "27>", "<image>", "<eos", "[@BOS@]"]
FRAGMENTS += ["[", "\n", "\n\n", " ", "a", "red circle", "é", "🟥", "<unused3>", "<0x41>"]
FRAGMENTS += ["\0", "{__class__}", "{0}"]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join))
def test_user_text_never_becomes_control_tokens(tokenizer, file_tokenizer, text):
    ids = tokenizer.encode_text(text)
    assert file_tokenizer.decode(ids, skip_special_tokens=False) == text
    newlines = range(NEWLINE, NEWLINE + 31)
    assert all(token >= NEWLINE + 31 or token in newlines for token in ids), "a control token"
    forbidden = {*tokenizer.locations, *tokenizer.mask_codes, tokenizer.id("<image>")}
    assert not forbidden & set(ids)


def test_a_training_answer_has_location_tokens(tokenizer):
    first, second = tokenizer.locations.start + 5, tokenizer.mask_codes.start + 127
    ids = tokenizer.encode_answer("<loc0005><seg127> star")
    assert ids == [first, second, *tokenizer.encode_text(" star")]


# --- prompts

PROMPTS = [
    *("caption en", "answer en how many red circles?", "detect red circle ; star", "a"),
    *("a\n\nb", "what?!", "two  blanks", "Straße №5", "🟥", "👩‍👩‍👧", "is it 🇨🇭"),
]


def test_prompt_ids_equal_transformers(tiny, tokenizer):
    processor: Any = PaliGemmaProcessor.from_pretrained(tiny)
    for prompt in PROMPTS:
        image = Image.new("RGB", (8, 8))
        expected = processor(images=image, text="<image>" + prompt)["input_ids"][0]
        ids = [tokenizer.id("<image>")] * PATCHES + tokenizer.encode_prompt(prompt)
        assert ids == [int(token) for token in expected], prompt


@pytest.mark.parametrize(
    "prompt",
    ["", " ", "\n\n", "a ", "a\n", "a\n\n\n", "a.", "a \t\n ", "🟥", "👩‍👩‍👧", "a\u3000", "▁"],
)
def test_prompt_ends_with_one_newline_token(tokenizer, prompt):
    ids = tokenizer.encode_prompt(prompt)
    assert ids == [BOS, *tokenizer.encode_text(prompt.strip()), NEWLINE]
    assert len(ids) == 2 or ids[-2] not in range(NEWLINE, NEWLINE + 31)


@pytest.mark.parametrize("token", ["<image>", "<bos>", "<eos>", "<loc0001>", "[@BOS@]", "<|user|>"])
@pytest.mark.parametrize("prompt", ["{}caption en", " {}", "\n{}{} caption"])
def test_prompts_that_begin_with_a_token_are_one_warning(token, prompt):
    file = tokenizers.Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))
    file.add_special_tokens([AddedToken("<|user|>", normalized=False)])
    tokenizer = Tokenizer(file)
    for text in ("caption en", f"what is {token}", token[:-1], f"image {token}"):
        tokenizer.encode_prompt(text)
    with pytest.warns(UserWarning, match=re.escape(f"begins with {token}, which")) as warned:
        tokenizer.encode_prompt(prompt.replace("{}", token))
    tokenizer.encode_prompt(prompt.replace("{}", token))  # a second warning would be an error
    assert len(warned) == 1


@pytest.mark.parametrize("all_are_special", [False, True])
def test_added_text_tokens_are_matched_and_control_tokens_are_not(all_are_special):
    """Even if the checkpoint declares its locations and mask codes as special tokens."""
    file = tokenizers.Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))
    file.add_special_tokens([AddedToken("<|user|>", normalized=False)])
    file.add_tokens([AddedToken("<table>", normalized=False, special=False)])
    if all_are_special:
        names = [f"<loc{n:04d}>" for n in range(1024)] + [f"<seg{n:03d}>" for n in range(128)]
        file.add_special_tokens([AddedToken(name, normalized=False) for name in names])
    tokenizer = Tokenizer(file)
    for typed in ("<eos>", "<image>", "<loc0001>", "<seg127>", "<|user|>"):
        for length in (1, 2, 31):
            text = f"a{typed}" + "\n" * length + f"{typed}<table>"
            ids = tokenizer.encode_text(text)
            assert file.decode(ids, skip_special_tokens=False) == text
            assert file.token_to_id(typed) not in ids
            assert NEWLINE + length - 1 in ids
            assert ids[-1] == file.token_to_id("<table>")


# --- decoding an answer


def test_decode_splits_locations_mask_codes_and_text(tokenizer):
    text = "<loc0000><loc0500><loc0700><loc1023> red circle ; <loc0001><seg003><seg127> star"
    ids = tokenizer.encode_answer(text)
    probabilities = [1 / (n + 2) for n in range(len(ids))]
    pieces = tokenizer.decode(ids, probabilities)
    assert "".join(piece.text for piece in pieces) == text
    kinds = ["location"] * 4 + ["text", "location", "mask", "mask", "text"]
    assert [piece.kind for piece in pieces] == kinds
    assert [piece.value for piece in pieces] == [0, 500, 700, 1023, None, 1, 3, 127, None]
    assert pieces[1] == Span("location", "<loc0500>", 500, 1 / 3)
    found = [piece.probability for piece in pieces if piece.kind != "text"]
    tokens = dict(zip(ids, probabilities, strict=True))  # each token occurs once
    assert found == [tokens[i] for i in ids if i >= tokenizer.locations.start]


def test_control_tokens_in_an_answer_are_not_shown(tokenizer):
    ids = [BOS, *tokenizer.encode_text("star"), tokenizer.id("<image>"), 0, 1]
    assert tokenizer.decode(ids, [1.0] * len(ids)) == [Span("text", "star")]


# --- padding


@given(st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=9), min_size=1, max_size=9))
def test_real_tokens_are_the_prompts(prompts):
    token_BT, is_real_BT = left_pad(prompts)
    if is_real_BT is None:
        is_real_BT = torch.ones_like(token_BT, dtype=torch.bool)
    rows = zip(token_BT, is_real_BT, strict=True)
    assert [row[real].tolist() for row, real in rows] == prompts
    assert bool(is_real_BT[:, -1].all())
    assert bool((is_real_BT[:, 1:] >= is_real_BT[:, :-1]).all()), "gaps between real tokens"


# --- invalid tokenizer files


def test_truncation_and_padding_of_the_file_are_ignored(tokenizer, file_tokenizer, tmp_path):
    """A template that adds <bos>, as in Gemma's file, is ignored too: `encode_prompt` adds it."""
    plain = tokenizer.encode_prompt("answer en how many red circles?")
    changed = tokenizers.Tokenizer.from_str(file_tokenizer.to_str())
    changed.enable_truncation(4)
    changed.enable_padding(length=64)
    changed.post_processor = processors.TemplateProcessing("<bos> $A", None, [("<bos>", BOS)])
    changed.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_folder(tmp_path).encode_prompt("answer en how many red circles?") == plain


def test_a_folder_without_a_tokenizer_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"no tokenizer\.json") as caught:
        Tokenizer.from_folder(tmp_path)
    assert "save_pretrained" in caught.value.hint
    assert caught.value.exit_code == 16


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (models.WordLevel({"<bos>": 0, "\n": 1, "a": 2}, unk_token="a"), "it is not the model's"),
        (models.WordLevel({"a": 0}, unk_token="nowhere"), "cannot encode"),
    ],
)
def test_another_models_tokenizer_is_rejected(tmp_path, model, message):
    """Also a tokenizer that cannot encode, which is detected before the first prompt."""
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InvalidCheckpoint, match=message):
        Tokenizer.from_folder(tmp_path)


def test_a_tokenizer_with_contradictory_merges_is_rejected(tmp_path):
    """The library panics, which is not an Exception."""
    steps = {"continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]]}
    values = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE"} | steps}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(InvalidCheckpoint, match="is not a tokenizer"):
        Tokenizer.from_folder(tmp_path)


def step(**changes: Any) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "b"} | changes


ENDLESS = {"Regex": "(a+)+$"}
SPLIT = {"type": "Split", "pattern": ENDLESS, "behavior": "Isolated", "invert": False}


@pytest.fixture
def opened(file_tokenizer, tmp_path) -> Callable[..., Tokenizer]:
    """Opens the tokenizer with changed values in its file."""

    def opened(**changes: Any) -> Tokenizer:
        values = json.loads(file_tokenizer.to_str())
        for name, value in changes.items():
            values[name] = values[name] | value if name == "model" else value
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
        return Tokenizer.from_folder(tmp_path)

    return opened


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("normalizer", step(pattern=ENDLESS), "regular expression"),
        ("pre_tokenizer", SPLIT, "regular expression"),
        ("decoder", step(pattern=ENDLESS), "regular expression"),
        ("normalizer", step(pattern={"Regex": r"\B"}), "regular expression"),
        ("normalizer", step(pattern={"Regex": "c{0,}"}), "regular expression"),
        ("normalizer", step(pattern={"Regex": r"\w{0}"}), "regular expression"),
    ],
    ids=range(6),
)
def test_slow_expressions_are_errors(opened, part, value, message):
    with pytest.raises(InvalidCheckpoint, match=message):
        opened(**{part: value})


def test_escaped_letters_hide_no_expression(file_tokenizer, tmp_path):
    values = json.loads(file_tokenizer.to_str()) | {"normalizer": step(pattern=ENDLESS)}
    text = json.dumps(values).replace('"Regex"', '"R\\u0065gex"')
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(InvalidCheckpoint, match="regular expression"):
        Tokenizer.from_folder(tmp_path)


def test_a_tokenizer_of_a_gigabyte_is_not_read(tmp_path):
    with open(tmp_path / "tokenizer.json", "wb") as file:
        file.truncate(2**30)
    with pytest.raises(InvalidCheckpoint, match=r"tokenizer\.json is larger than"):
        Tokenizer.from_folder(tmp_path)


Edit = Callable[[list[dict[str, Any]]], Any]


def renamed(old: str, new: str) -> Edit:
    """An edit that renames the added token `old`."""
    return lambda added: [t.update(content=new) for t in added if t["content"] == old]


def exchanged(one: str, other: str) -> Edit:
    """An edit that swaps the ids of two added tokens."""

    def exchange(added: list[dict[str, Any]]) -> None:
        first, second = (next(t for t in added if t["content"] == name) for name in (one, other))
        first["content"], second["content"] = other, one

    return exchange


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (renamed("<bos>", "<s>"), "no token '<bos>'"),
        (renamed("\n", "<newline>"), r"no token '\\n'"),
        (renamed("<loc0000>", "<place0>"), "no token '<loc0000>'"),
        (renamed("<loc1023>", "<place1023>"), "no token '<loc1023>'"),
        (renamed("<seg127>", "<code127>"), "no token '<seg127>'"),
        (exchanged("<loc0007>", "<loc0008>"), "<loc0007> is out of order"),
        (exchanged("<loc0500>", "<seg003>"), "<loc0500> is out of order"),
        (exchanged("<seg000>", "<seg127>"), "<seg001> is out of order"),
    ],
)
def test_a_missing_or_misplaced_token_is_named(file_tokenizer, opened, edit, message):
    values = json.loads(file_tokenizer.to_str())
    edit(values["added_tokens"])
    vocab = {token["content"]: token["id"] for token in values["added_tokens"]}
    taken = set(vocab.values())
    words = {word: index for word, index in values["model"]["vocab"].items() if index not in taken}
    with pytest.raises(InvalidCheckpoint, match=message):
        opened(added_tokens=values["added_tokens"], model={"vocab": words | vocab})
