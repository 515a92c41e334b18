"""The loss of answers: that of transformers, and the same in any number of parts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.model.paligemma import PaliGemma
from pgcli.training import answers as answer_loss_module
from pgcli.training.answers import AnswerTokens, TokenizedExample, answer_loss
from tests.support.tiny import PATCHES, RESOLUTION, reference

VOCABULARY = 400
IMAGE = VOCABULARY - 1
ROWS = [
    TokenizedExample([2, 50, 51, 52, 108], [60, 61, 62, 63, 64, 65, 66, 67, 1]),
    TokenizedExample([2, 108], [70, 1]),
    TokenizedExample([2, 53, 54, 108], [80, 81, 82, 1]),
]


def pixels() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(len(ROWS), 3, RESOLUTION, RESOLUTION, generator=generator) * 2 - 1


def pair(folder: Path, generation: int) -> tuple[Any, PaliGemma]:
    """A random model of transformers, and this package's model of its files; both are trained."""
    theirs = reference(VOCABULARY, generation=generation).requires_grad_(True)
    theirs.save_pretrained(folder)
    ours = weights.load_paligemma(folder, read_config(folder), dtype=torch.float32)
    return theirs, ours.requires_grad_(requires_grad=True)


def tokens(rows: list[TokenizedExample], model: PaliGemma) -> AnswerTokens:
    window = model.config.decoder.sliding_window
    return AnswerTokens.of(rows, patches=PATCHES, window=window, device=torch.device("cpu"))


def our_loss(model: PaliGemma, **options: Any) -> Tensor:
    """The mean loss of the rows."""
    patch_BPD = model.encode(pixels())
    return answer_loss(model, patch_BPD, tokens(ROWS, model), **options) / len(ROWS)


def hf_inputs(rows: list[TokenizedExample]) -> dict[str, Tensor]:
    """As transformers' processor makes them of a suffix, padded on the right."""
    longest = max(len(row.prefix) + len(row.suffix) for row in rows)
    columns: dict[str, list[list[int]]] = {
        "input_ids": [],
        "attention_mask": [],
        "token_type_ids": [],
        "labels": [],
    }
    for prefix, suffix in rows:
        head = [IMAGE] * PATCHES + [*prefix]
        padding = longest - len(prefix) - len(suffix)
        columns["input_ids"].append([*head, *suffix, *[0] * padding])
        columns["attention_mask"].append([1] * (len(head) + len(suffix)) + [0] * padding)
        columns["token_type_ids"].append([0] * len(head) + [1] * (len(suffix) + padding))
        columns["labels"].append([-100] * len(head) + [*suffix] + [-100] * padding)
    return {name: torch.tensor(values) for name, values in columns.items()}


def hf_gradients(model: PaliGemma, theirs: Any) -> dict[str, Tensor]:
    """transformers' gradients, fused as the model's parameters are."""
    stored = {
        weights.PALIGEMMA.canonical(name): parameter.grad
        for name, parameter in theirs.named_parameters()
    }
    found: dict[str, list[tuple[int, Tensor]]] = {}
    for name, part in weights.param_slices(model).items():
        found.setdefault(part.parameter, []).append((part.start, stored[name]))
    return {
        name: torch.cat([gradient for _, gradient in sorted(parts, key=lambda one: one[0])])
        for name, parts in found.items()
    }


def assert_same_gradients(model: PaliGemma, expected: dict[str, Tensor]) -> None:
    names = {name for name, _ in model.named_parameters()}
    assert names == expected.keys()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        error = (parameter.grad - expected[name]).norm() / expected[name].norm()
        assert error < 1e-3, (name, error)


@pytest.mark.parametrize("generation", [1, 2])
def test_loss_and_gradients_equal_the_means_of_transformers(tmp_path, generation):
    theirs, ours = pair(tmp_path, generation)
    theirs.config.text_config.final_logit_softcapping = None
    found = our_loss(ours)
    found.backward()
    alone = [
        theirs(**hf_inputs([row]), pixel_values=pixels()[number : number + 1]).loss
        for number, row in enumerate(ROWS)
    ]
    expected = torch.stack(alone).mean()
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(ours, hf_gradients(ours, theirs))


def test_chunked_loss_equals_the_whole_loss_with_fewer_logits_in_memory(tmp_path, monkeypatch):
    _, ours = pair(tmp_path, 2)
    whole = our_loss(ours)
    whole.backward()
    expected = {name: one.grad for name, one in ours.named_parameters() if one.grad is not None}
    ours.zero_grad()
    seen: list[int] = []
    entropy = F.cross_entropy

    def counted(logits: Tensor, *args: Any, **options: Any) -> Tensor:
        seen.append(len(logits))
        return entropy(logits, *args, **options)

    monkeypatch.setattr(F, "cross_entropy", counted)
    monkeypatch.setattr(answer_loss_module, "CHUNK_BYTES", 4 * 4 * VOCABULARY)
    parts = our_loss(ours)
    parts.backward()
    assert sorted(seen) == sorted([4, 4, 4, 3] * 2)  # 15 answer tokens, also in the backward pass
    assert parts.item() == pytest.approx(whole.item(), rel=1e-6)
    assert_same_gradients(ours, expected)
