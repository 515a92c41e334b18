"""The task of PaliGemma: the answer to an image and a prompt.

B rows · P patches · D width
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import MemoryBudget
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.paligemma import PaliGemma
from pgcli.regions import split_locations
from pgcli.training.answer_evaluation import TrueAnswers
from pgcli.training.answer_loss import AnswerTokens, LossMean, answer_loss
from pgcli.training.feature_store import FeatureBatch, FeatureStore, distinct_images
from pgcli.training.image_batches import ImageBatch
from pgcli.training.image_task import ImageTask
from pgcli.training.packing import TokenizedExample
from pgcli.training.seeds import seed_of
from pgcli.training.sharding import compute, is_divided
from pgcli.training.task import SampleAnswer
from pgcli.training.training_row import TrainingRow

AnyBatch = ImageBatch | FeatureBatch
Track = Callable[[Iterable[ImageBatch]], Iterable[ImageBatch]]
SAMPLES = 8  # answers of an evaluation that are shown


@dataclass(frozen=True, slots=True)
class AnswerObjective:
    """The loss of answers; `keep_softcap` keeps the second generation's final softcap."""

    mean: LossMean = "example"
    label_smoothing: float = 0.0
    keep_softcap: bool = False


@dataclass(kw_only=True)
class AnswerTask(ImageTask[PaliGemma]):
    """Trains PaliGemma: the cross-entropy of answers, given images and prompts.

    An evaluation has the loss, and the metrics of the model's greedy answers; `samples` are some of
    the last one. With `features`, the vision tower's outputs of the rows to train on are those.
    """

    tokenizer: Tokenizer
    preprocessing: Preprocessing
    objective: AnswerObjective
    features: FeatureStore | None = None
    samples: Sequence[SampleAnswer] = ()
    truths: TrueAnswers = field(init=False)

    def __post_init__(self) -> None:
        self.truths = TrueAnswers.of(self.data.evaluation)
        self._main_metric = self.truths.main_metric

    def batches(self, first: int, stop: int) -> Generator[AnyBatch]:
        if self.features is None:
            yield from super().batches(first, stop)
            return
        for rows in self.data.row_batches(first, stop):
            yield self.features.batch(rows)

    def fill_features(self, features: FeatureStore, track: Track = iter) -> None:
        """Compute the vision tower's outputs of all images to train on, each in one process.

        They are always computed in the same batches, so that a resumed run has the same ones.
        """
        self.model.eval()
        images = distinct_images(self.data.train)
        processes = self.data.processes
        with processes.fail_together(), torch.no_grad(), self.input.autocast():
            features.fill(track(self.data.in_order(images, processes)), self._stored_features)
        features.share()
        if not len(features):
            raise self.data.none_read(images)
        self.features = features

    def weight(self, batch: AnyBatch) -> float:
        """The number of rows, or of the tokens of their answers."""
        if self.objective.mean == "example":
            return len(batch.rows)
        return sum(len(self.example(row).suffix) for row in batch.rows)

    def backward(self, batch: AnyBatch, total: float) -> Mapping[str, float]:
        seed, rows = torch.initial_seed(), len(batch.rows)
        # the weights of a divided model are gathered for as many parts in each process
        largest = self.data.processes.largest(rows) if is_divided(self.model) else rows

        def accumulate() -> tuple[float, int]:
            loss, tokens = 0.0, 0
            for start, stop in self.micro_batches.ranges(rows, largest):
                torch.manual_seed(seed_of(seed, start))  # of dropout, also after a lack of memory
                if start == stop:
                    blank, _ = self._loss(batch.blank(self.data.train[0]))
                    (0.0 * blank).backward()  # type: ignore[no-untyped-call]
                    continue
                part_loss, part_tokens = self._loss(batch.part(start, stop))
                part_loss = part_loss / total
                part_loss.backward()  # type: ignore[no-untyped-call]
                loss += part_loss.item()
                tokens += part_tokens
            return loss, tokens

        loss, tokens = self.micro_batches.run(self.model, rows, accumulate)
        return {"loss": loss, "rows": rows, "tokens": tokens, "lost": batch.lost}

    def evaluate(self) -> Mapping[str, float]:
        """The loss, and the task's metrics of greedy answers."""
        loss = total = 0.0

        def batches() -> Iterator[ImageBatch]:
            nonlocal loss, total
            for batch in self.data.in_order(self.data.evaluation):
                loss += self._loss_of(batch)
                total += self.weight(batch)
                yield batch

        answers = dict(self.truths.ask(self._engine(), batches()))
        self.samples = self.truths.samples(answers, SAMPLES)
        return {"loss": loss / total, **self.truths.measure(answers)}

    def rank(self, found: Mapping[str, float]) -> tuple[float, ...]:
        """The task's metric, and of equal ones the loss; the loss alone if tasks are mixed."""
        if self._main_metric is None:
            return (-found["loss"],)
        return found.get(self._main_metric, -math.inf), -found["loss"]

    def example(self, row: TrainingRow) -> TokenizedExample:
        """The tokens of a row's prompt and answer."""
        return tokenized(row, self.tokenizer, self.model.config.stop_tokens[0])

    def _loss_of(self, batch: ImageBatch) -> float:
        """The sum of the rows' losses, without gradients."""
        with torch.no_grad():
            return sum(self.in_parts(batch, lambda part: self._loss(part)[0].item()))

    def _loss(self, batch: AnyBatch) -> tuple[Tensor, int]:
        """The sum of the rows' losses, and the number of their tokens, those of images included."""
        examples = [self.example(row) for row in batch.rows]
        config, objective = self.model.config, self.objective
        tokens = AnswerTokens.of(
            examples,
            patches=config.image_tokens,
            window=config.decoder.sliding_window,
            device=self.input.device,
        )

        def loss_of_rows() -> Tensor:
            return answer_loss(
                self.model,
                self.model.projector(self._features(batch)),
                tokens,
                loss_mean=objective.mean,
                label_smoothing=objective.label_smoothing,
                keep_softcap=objective.keep_softcap,
            )

        with self.input.autocast():
            loss = compute(self.model, loss_of_rows)
        count = sum(len(one.prefix) + len(one.suffix) for one in examples)
        return loss, count + len(examples) * config.image_tokens

    def _features(self, batch: AnyBatch) -> Tensor:
        """The outputs of the vision tower (B, P, D)."""
        if isinstance(batch, FeatureBatch):
            return batch.feature_BPD.to(self.input.device)
        pixels_BCRR = self.input.pixels(batch).to(self.model.projector.weight.dtype)
        patch_BPD: Tensor = self.model.vision(pixels_BCRR)
        return patch_BPD

    def _stored_features(self, batch: ImageBatch) -> Tensor:
        """The outputs of the vision tower (B, P, D), in host memory."""
        return torch.cat(self.in_parts(batch, lambda part: self._features(part).cpu()))

    def _engine(self) -> InferenceEngine:
        """The engine that answers with the model that is trained."""
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
