"""The built-in model's tokenizer: a small byte-fallback BPE in Gemma's form."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

#: The first ids, equal to Gemma's.
CONTROL = (
    *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<2mass>", "[@BOS@]"),
    *(f"<unused{i}>" for i in range(99)),
    *("<start_of_turn>", "<end_of_turn>"),
)
NEWLINES = tuple("\n" * i for i in range(1, 32))  # the first is id 108
BYTES = tuple(f"<0x{i:02X}>" for i in range(256))
SPACE = "▁"
CHARACTERS = (SPACE, *map(chr, range(ord("!"), ord("~") + 1)))
LOCATIONS = tuple(f"<loc{i:04d}>" for i in range(1024))
MASK_CODES = tuple(f"<seg{i:03d}>" for i in range(128))
IMAGE = "<image>"

MERGES = 400  # at most; every word of the drawings is one token after 271
WORD = re.compile(f"{SPACE}?[A-Za-z]+|{SPACE};")  # digits and other punctuation are not merged

TOKENIZER_CONFIG = {
    "tokenizer_class": "GemmaTokenizer",
    "processor_class": "PaliGemmaProcessor",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "extra_special_tokens": {"image_token": IMAGE},
    "add_bos_token": False,
    "add_eos_token": False,
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
}


def build_tokenizer(
    folder: Path, texts: Iterable[str], *, resolution: int, image_tokens: int
) -> None:
    """Write tokenizer.json, tokenizer_config.json and preprocessor_config.json into `folder`.

    Equal texts give equal files, byte for byte. transformers' PaliGemmaProcessor reads them
    unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    assemble(learn_merges(texts)).save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", TOKENIZER_CONFIG)
    _write(folder / "preprocessor_config.json", _preprocessor(resolution, image_tokens))


def learn_merges(texts: Iterable[str]) -> list[tuple[str, str]]:
    """The BPE merges of the words of the texts; no merge crosses a word boundary."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(WORD.findall(_without_added(text).replace(" ", SPACE)))
    learner = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=len(CHARACTERS) + MERGES,
        initial_alphabet=list(CHARACTERS),
        show_progress=False,
    )
    learner.train_from_iterator(sorted(words.elements()), trainer)
    return [(a, b) for a, b in json.loads(learner.to_str())["model"]["merges"]]


def assemble(merges: list[tuple[str, str]]) -> Tokenizer:
    """The tokenizer with Gemma's ids: control tokens, newlines, bytes, text, locations, image."""
    joined = [a + b for a, b in merges]
    names = (*CONTROL, *NEWLINES, *BYTES, *CHARACTERS, *joined, *LOCATIONS, *MASK_CODES, IMAGE)
    vocab = {name: index for index, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in CONTROL])
    plain = (*NEWLINES, *LOCATIONS, *MASK_CODES)
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=False) for name in plain])
    tokenizer.add_special_tokens([AddedToken(IMAGE, normalized=False)])
    return tokenizer


def _without_added(text: str) -> str:
    return re.sub(r"<(loc\d{4}|seg\d{3})>", "", text)


def _preprocessor(resolution: int, image_tokens: int) -> dict[str, Any]:
    return {
        "image_processor_type": "SiglipImageProcessor",
        "processor_class": "PaliGemmaProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "size": {"height": resolution, "width": resolution},
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_seq_length": image_tokens,
    }


def _write(path: Path, settings: dict[str, Any]) -> None:
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
