"""Checkpoints with a SentencePiece model give the same tokens as with tokenizer.json."""

import json
import shutil
import sys

import pytest
import sentencepiece
import tokenizers
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from pgcli.checkpoints.tokenizer import open_tokenizer
from pgcli.errors import InvalidCheckpoint
from tests.support.runs import run_python
from tests.support.tiny import tokenizer_into

NORMAL, UNKNOWN, CONTROL_PIECE, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
UNIGRAM, BPE = 1, 2
CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<2mass>", "[@BOS@]")
CONTROL = (*CONTROL, *(f"<unused{i}>" for i in range(99)), "<start_of_turn>", "<end_of_turn>")
NEWLINES = tuple("\n" * count for count in range(1, 32))
BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
TEXTS = [
    "caption en",
    "detect red circle ; blue square",
    "answer en what is left of the big green triangle?",
    "how many shapes are there in this image?\n",
    "<loc0001><loc0100><loc0003><loc1023> red circle ; <loc0000><loc0000>",
    "<seg000><seg127> x <image><bos><eos><pad><unk><mask>",
    "a  b   c\n\n\nd \n ",
    "   in front, behind   ",
    "\t tabs\t\tand\r\nreturns",
    "é ﬁ ½ 🟥👩‍👩‍👧 日本語 עברית \u200b\ufeff\u00a0\x00\x7f",
    "<0x41><0x", "<unused3>c[@BOS@]<start_of_turn>", "<loc1024><loc01> <LOC0001> loc0001>",
    "▁under▁score", "A" * 300, "",
]  # fmt: skip


def kind_of(name):
    if name in CONTROL[:3]:
        return CONTROL_PIECE
    if name == "<unk>":
        return UNKNOWN
    if name in CONTROL or name in NEWLINES:
        return USER_DEFINED
    return BYTE if name in BYTES else NORMAL


def sentencepiece_model(names, *, kind=BPE, byte_fallback=True, charsmap=b""):
    """The bytes of a tokenizer.model with these pieces in this order, of Gemma's kind."""
    model = ModelProto()
    for index, name in enumerate(names):
        piece = kind_of(name)
        model.pieces.add(piece=name, type=piece, score=-float(index) if piece == NORMAL else 0.0)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = kind, byte_fallback
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 3, 2, 1, 0
    normalizer.name, normalizer.precompiled_charsmap = "identity", charsmap
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return model.SerializeToString()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The tokenizer.json equivalent of the SentencePiece folders."""
    folder = tmp_path_factory.mktemp("json")
    tokenizer_into(folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def names(expected):
    """The pieces of the model, in order; then those that PaliGemma adds."""
    vocabulary = expected.get_vocab()
    ordered = sorted(vocabulary, key=vocabulary.get)
    added = [name for name in ordered if name.startswith(("<loc", "<seg", "<image"))]
    return ordered[: -len(added)], added


@pytest.fixture
def folder(tmp_path, names):
    """A checkpoint folder as written by transformers 4: a model and added tokens."""
    text, added = names
    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(text))
    ids = {name: len(text) + index for index, name in enumerate(added)}
    write(tmp_path, "added_tokens", ids)
    write(tmp_path, "special_tokens_map", {"additional_special_tokens": ["<image>"]})
    return tmp_path


def write(folder, name, values):
    (folder / f"{name}.json").write_text(json.dumps(values))


def described(names):
    """The same tokens as in the settings of newer versions, with control tokens."""
    text, added = names
    ids = {text.index(name): name for name in CONTROL}
    ids |= {len(text) + index: name for index, name in enumerate(added)}
    special = {"<image>", *CONTROL}
    return {
        str(index): {"content": name, "special": name in special, "normalized": False}
        for index, name in ids.items()
    }


def assert_alike(tokenizer, expected):
    assert tokenizer.get_vocab() == expected.get_vocab()
    for text in TEXTS:
        ids = expected.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        whole = expected.decode(ids, skip_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == whole, text


@pytest.mark.parametrize("layout", ["older", "newer", "both"])
def test_tokens_equal_those_of_tokenizer_json(folder, names, expected, layout):
    if layout != "older":
        write(folder, "tokenizer_config", {"added_tokens_decoder": described(names)})
    if layout == "newer":
        (folder / "added_tokens.json").unlink()
    assert_alike(open_tokenizer(folder), expected)


def test_special_tokens_of_older_files_are_never_text(folder):
    tokenizer = open_tokenizer(folder)
    ids = [tokenizer.token_to_id(name) for name in ("<image>", "<loc0001>")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<loc0001>"


def test_tokens_equal_those_of_sentencepiece(folder):
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    tokenizer = open_tokenizer(folder)
    for text in TEXTS:
        if not any(special in text for special in ("<loc", "<seg", "\x00", "<0x", "<bos>")):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert ids == model.encode(text), text


def test_tokenizer_json_takes_precedence_and_needs_no_other_package(folder, expected):
    expected.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer.model").write_bytes(b"broken")
    code = (
        "import sys; from pathlib import Path; from pgcli.checkpoints.tokenizer import *; "
        "open_tokenizer(Path(sys.argv[1])); "
        "assert not {'transformers', 'sentencepiece', 'google.protobuf'} & set(sys.modules)"
    )
    run_python(code, folder)


def test_missing_packages_are_named_with_a_hint(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(InvalidCheckpoint, match="needs sentencepiece and protobuf") as caught:
        open_tokenizer(folder)
    assert caught.value.hint == "pip install 'paligemma-cli[sentencepiece]'"


# Broken and hostile files


def refused(folder):
    with pytest.raises(InvalidCheckpoint) as caught:
        open_tokenizer(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 400, b"{}", b"bWFu 0\nY2F0 1\n", b"\x0a\xff\xff\xff\xff\x7f"]
)
def test_an_invalid_sentencepiece_model_is_an_error(folder, content):
    (folder / "tokenizer.model").write_bytes(content)
    assert "tokenizer.model" in refused(folder)


def test_a_truncated_sentencepiece_model_is_an_error(folder, names):
    model = sentencepiece_model(names[0])
    for end in [1, 2, 20, *range(100, len(model), len(model) // 7), len(model) - 30]:
        (folder / "tokenizer.model").write_bytes(model[:end])
        assert "tokenizer.model" in refused(folder)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": UNIGRAM}, "byte-pair"),
        ({"byte_fallback": False}, "byte fallback"),
        ({"charsmap": b"\x00\x01"}, "rewrites"),
    ],
    ids=str,
)
def test_a_sentencepiece_model_unlike_gemmas_is_an_error(folder, names, options, reason):
    (folder / "tokenizer.model").write_bytes(sentencepiece_model(names[0], **options))
    assert reason in refused(folder)


def test_repeated_pieces_are_an_error(folder, names):
    (folder / "tokenizer.model").write_bytes(sentencepiece_model([*names[0], "red", "red"]))
    assert "repeated" in refused(folder)


def test_a_huge_file_is_not_read(folder):
    with (folder / "tokenizer.model").open("r+b") as file:
        file.truncate(2**40)
    assert "larger" in refused(folder)


@pytest.mark.parametrize("change", [{"<loc0001>": 5}, {"<new>": 10**6}, {"": 3}, {"<new>": -1}])
def test_added_token_with_another_id_is_an_error(folder, change):
    ids = json.loads((folder / "added_tokens.json").read_text())
    write(folder, "added_tokens", ids | change)
    assert "has the id" in refused(folder)


@pytest.mark.parametrize(
    "decoder", [{"x": {"content": "a"}}, {"3": 4}, {"9" * 5000: {"content": "a"}}]
)
def test_invalid_settings_are_errors(folder, decoder):
    write(folder, "tokenizer_config", {"added_tokens_decoder": decoder})
    assert "added_tokens_decoder" in refused(folder)


def test_no_setting_of_the_checkpoint_reaches_transformers(folder, expected, tmp_path_factory):
    trap = tmp_path_factory.mktemp("trap")
    (trap / "code.py").write_text(f"open({str(trap / 'ran')!r}, 'w')")
    shutil.copy(trap / "code.py", folder / "tokenization_own.py")
    settings = {
        "auto_map": {"AutoTokenizer": ["tokenization_own.T", None]},
        "tokenizer_class": "T",
        "tokenizer_file": "/etc/passwd",
        "vocab_file": "/etc/passwd",
        "unk_token": "other",
        "chat_template": "{{ 1 / 0 }}",
    }
    write(folder, "tokenizer_config", settings)
    assert_alike(open_tokenizer(folder), expected)
    assert not (trap / "ran").exists()
