"""Learns a small tokenizer from the texts of a run without a checkpoint."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from pathlib import Path

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

CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>")
PAD, EOS = 0, 1
BYTES = tuple(f"<0x{value:02X}>" for value in range(256))
ALPHABET = 1_000  # characters with a token; other characters are encoded as bytes


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
