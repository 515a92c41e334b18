"""What other trainers get wrong, planted in this one: each fault lets runs end well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pgcli.checkpoints import adapters
from pgcli.checkpoints.adapters import AdapterTensors
from pgcli.errors import InvalidCheckpoint
from pgcli.model.paligemma import PaliGemma
from pgcli.training import setup, trainer
from pgcli.training.answers import loss as answer_loss
from pgcli.training.answers import start as start_answers
from pgcli.training.answers import task as answer_task
from pgcli.training.answers.loss import AnswerTokens, TokenizedExample
from pgcli.training.answers.task import AnswerTask
from pgcli.training.data import TrainingData
from pgcli.training.task import Loss
from tests.support.training_checks import (
    Patch,
    check_accumulation,
    check_best,
    check_keys,
    check_long_rows,
    check_loss,
    check_merged,
    check_resume,
    check_small_updates,
    check_small_updates_of_adapters,
)


def causal_prompt(patch: Patch) -> None:
    """Prompt and image tokens attend to what is before them alone."""
    masks = answer_loss.prefix_lm_masks
    patch.setattr(
        answer_loss, "prefix_lm_masks", lambda prefix, *more: masks(prefix.new_zeros(1), *more)
    )


def loss_over_the_prompt(patch: Patch) -> None:
    """Each token is learned from those before it, also those of the prompt."""
    of = AnswerTokens.of

    def every(examples: Any, **options: Any) -> AnswerTokens:
        found = of(examples, **options)
        label_BT = found.label_BT.clone()
        for row, (prefix, _) in enumerate(examples):
            label_BT[row, : len(prefix) - 1] = found.token_BT[row, 1 : len(prefix)]
        return found._replace(label_BT=label_BT)

    patch.setattr(AnswerTokens, "of", every)


def no_stop_token(patch: Patch) -> None:
    """The end of an answer is not learned."""
    tokens = answer_task.tokenized

    def without(*given: Any) -> TokenizedExample:
        found = tokens(*given)
        return found._replace(suffix=found.suffix[:-1])

    patch.setattr(answer_task, "tokenized", without)


def image_without_its_last_token(patch: Patch) -> None:
    """The image has a token less, and the text begins a position before."""
    loss, of = answer_task.answer_loss, AnswerTokens.of

    def cut(model: PaliGemma, patch_BPD: Tensor, *given: Any, **options: Any) -> Tensor:
        return loss(model, patch_BPD[:, :-1], *given, **options)

    def tokens(examples: Any, *, patches: int, **options: Any) -> AnswerTokens:
        return of(examples, patches=patches - 1, **options)

    patch.setattr(answer_task, "answer_loss", cut)
    patch.setattr(AnswerTokens, "of", tokens)


def long_rows_are_cut(patch: Patch) -> None:
    """A row has the first tokens that fit into the model's positions after the image."""
    tokens = answer_task.tokenized

    def cut(*given: Any) -> TokenizedExample:
        found, room = tokens(*given), 128 - 4  # of the tiny model
        return found._replace(suffix=found.suffix[: room - len(found.prefix)])

    patch.setattr(answer_task, "tokenized", cut)
    patch.setattr(setup, "tokenized", cut)


def mean_of_the_means_of_parts(patch: Patch) -> None:
    """Each part of an update weighs the same, however many rows it has."""
    loss = AnswerTask.loss

    def of_part(self: AnswerTask, batch: Any) -> Loss:
        found = loss(self, batch)
        return found._replace(sum=found.sum / found.weight, weight=1)

    patch.setattr(AnswerTask, "loss", of_part)


def resume_repeats_rows(patch: Patch) -> None:
    """A resumed run begins with the first rows of the first epoch."""
    batches = TrainingData.row_batches
    patch.setattr(
        TrainingData, "row_batches", lambda self, first, stop: batches(self, 0, stop - first)
    )


def resume_skips_rows(patch: Patch) -> None:
    """A resumed run begins with the next epoch."""
    batches = TrainingData.row_batches

    def from_next_epoch(self: TrainingData, first: int, stop: int) -> Any:
        skipped = -first % self.order.steps_per_epoch
        return batches(self, first + skipped, stop + skipped)

    patch.setattr(TrainingData, "row_batches", from_next_epoch)


def unmatched_keys_are_ignored(patch: Patch) -> None:
    """Tensors that are not the model's are left out, as with `strict=False`."""
    read = adapters.read_adapter

    def tolerant(*given: Any) -> AdapterTensors:
        try:
            return read(*given)
        except InvalidCheckpoint:
            return AdapterTensors({}, {})

    patch.setattr(adapters, "read_adapter", tolerant)
    patch.setattr(adapters, "check_adapter", lambda *_: None)


def product_is_rounded(patch: Patch) -> None:
    """The product is rounded to the weight's dtype, and so is the sum."""

    def merge(weight: Tensor, up: Tensor, down: Tensor, scale: float, *_: Any) -> bool:
        weight += (scale * up @ down).to(weight.dtype)
        return True

    patch.setattr(adapters, "merge_product", merge)


def merged_without_the_scale(patch: Patch) -> None:
    """Alpha and rank are not used."""
    merge = adapters.merge_product
    patch.setattr(adapters, "merge_product", lambda *given: merge(*given[:3], 1.0, *given[4:]))


def half_precision_weights(patch: Patch) -> None:
    """The weights that are trained are in bfloat16."""
    patch.setattr(start_answers, "base_dtype", lambda *_: torch.bfloat16)
    patch.setattr(setup, "base_dtype", lambda *_: torch.bfloat16)
    patch.setattr(trainer, "make_optimizer", plain_adamw)


def half_precision_adapters(patch: Patch) -> None:
    """The adapters are in the dtype of the frozen weights."""
    add = start_answers.add_lora

    def halved(model: PaliGemma, *given: Any) -> None:
        add(model, *given)
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16()

    patch.setattr(start_answers, "add_lora", halved)
    patch.setattr(trainer, "make_optimizer", plain_adamw)


def plain_adamw(model: PaliGemma, **_: Any) -> torch.optim.Optimizer:
    """AdamW of whatever requires gradients, in its own dtype."""
    trained = [one for one in model.parameters() if one.requires_grad]
    return torch.optim.AdamW(trained, weight_decay=0.0)


def last_is_best(patch: Patch) -> None:
    """Each evaluation is better than the one before; the best so far alone has a step."""
    patch.setattr(AnswerTask, "rank", lambda _, found: ("step" not in found,))


def largest_loss_is_best(patch: Patch) -> None:
    """The loss is compared as if it were a metric."""
    patch.setattr(AnswerTask, "rank", lambda _, found: (found["loss"],))


#: The faults by what other trainers get wrong, each with the check that notices it.
FAULTS: dict[str, dict[Callable[[Patch], None], Callable[[Patch], None]]] = {
    "the prompt is trained as causal": {causal_prompt: check_loss},
    "loss over the prompt": {loss_over_the_prompt: check_loss, no_stop_token: check_loss},
    "losses change with accumulation": {mean_of_the_means_of_parts: check_accumulation},
    "resume repeats or skips data": {
        resume_repeats_rows: check_resume,
        resume_skips_rows: check_resume,
    },
    "adapters match no weight, silently": {unmatched_keys_are_ignored: check_keys},
    "merged weights are not the adapter's": {
        product_is_rounded: check_merged,
        merged_without_the_scale: check_merged,
    },
    "updates of bfloat16 weights round to nothing": {
        half_precision_weights: check_small_updates,
        half_precision_adapters: check_small_updates_of_adapters,
    },
    "the best checkpoint is not the best": {
        last_is_best: check_best,
        largest_loss_is_best: check_best,
    },
    "image tokens are cut": {
        image_without_its_last_token: check_loss,
        long_rows_are_cut: check_long_rows,
    },
}
