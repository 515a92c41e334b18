"""The training task of PaliGemma: answers to images and prompts.

B rows · P patches · D width
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from pgcli.boxes import split_locations
from pgcli.device.select import free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import MemoryBudget
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.paligemma import PaliGemma
from pgcli.training.answer_evaluation import TrueAnswers
from pgcli.training.answer_loss import AnswerTokens, TokenizedExample, answer_loss
from pgcli.training.data import ImageBatch
from pgcli.training.rows import TrainingRow
from pgcli.training.task import ImageTask, Loss, Metrics


@dataclass(kw_only=True)
class AnswerTask(ImageTask[PaliGemma]):
    """Trains PaliGemma: the cross-entropy of answers, given images and prompts.

    An evaluation computes the loss, and the metrics of greedy answers.
    """

    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        self.truths = TrueAnswers.of(self.data.evaluation)
        self.main_metric = self.truths.main_metric

    def loss(self, batch: ImageBatch) -> Loss:
        return self._loss(batch)

    def evaluate(self) -> Metrics:
        """The loss, and the task's metrics of greedy answers."""
        loss = total = 0.0

        def batches() -> Iterator[ImageBatch]:
            nonlocal loss, total
            for batch in self.data.in_order(self.data.evaluation):
                with torch.no_grad():
                    loss += sum(self.in_parts(batch, lambda part: self._loss(part).sum.item()))
                total += len(batch.rows)
                yield batch

        answers = dict(self.truths.ask(self._engine(), batches()))
        return {"loss": loss / total, **self.truths.measure(answers)}

    def _loss(self, batch: ImageBatch) -> Loss:
        """The loss of the rows; the token count includes image tokens."""
        config = self.model.config
        examples = [tokenized(row, self.tokenizer, config.stop_tokens[0]) for row in batch.rows]
        tokens = AnswerTokens.of(
            examples,
            patches=config.image_tokens,
            window=config.decoder.sliding_window,
            device=self.device,
        )
        with self.autocast():
            pixels_BCRR = self.pixels(batch).to(self.model.projector.weight.dtype)
            patch_BPD = self.model.encode(pixels_BCRR)
            loss = answer_loss(self.model, patch_BPD, tokens)
        count = sum(config.image_tokens + len(prefix) + len(suffix) for prefix, suffix in examples)
        return Loss(loss, len(examples), tokens=count)

    def _engine(self) -> InferenceEngine:
        """An engine for the model in training."""
        weight = self.model.projector.weight
        free = free_bytes(weight.device)
        budget = MemoryBudget(self.model.config, weight.dtype.itemsize, weight.device.type, free)
        return InferenceEngine(
            self.model,
            self.tokenizer,
            self.preprocessing,
            label="",
            batch_size=1,
            budget=budget,
        )


def tokenized(row: TrainingRow, tokenizer: Tokenizer, stop_token: int) -> TokenizedExample:
    """The tokens of a row's prompt, and of its answer with the stop token."""
    answer = tokenizer.encode_answer(row.target)
    prompt = tokenizer.encode_prompt(*split_locations(row.prompt))
    return TokenizedExample(prompt, [*answer, stop_token])
