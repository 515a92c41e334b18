"""The training task of PaliGemma: answers to images and prompts, their loss and their metrics.

B rows · P patches · T text tokens · S all slots · D width · M answer tokens · V vocabulary
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from pgcli.boxes import region_of, split_locations
from pgcli.checkpoints import weights
from pgcli.checkpoints.adapters import fingerprint_of, warn_of_another_base
from pgcli.checkpoints.config import read_config, read_description
from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.checkpoints.save import save_checkpoint
from pgcli.device.select import choose_dtype, free_bytes
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import read_tokenizer
from pgcli.engine.memory import MemoryBudget
from pgcli.engine.sampler import SamplingParams
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import NoInputError, NoUsableDevice, UsageError
from pgcli.evaluation.evaluate import measured_values
from pgcli.evaluation.join import Truths, joined_row, missing_rows
from pgcli.evaluation.measures import JoinedRow, metrics_of, task_of_prompt
from pgcli.labels.labelled_image import LabelledImage
from pgcli.model.attention import AttentionMasks
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.cpu.processor import has_bfloat16
from pgcli.model.gemma import GemmaDecoderLayer
from pgcli.model.paligemma import PaliGemma
from pgcli.model.quantized import freeze_in_int8
from pgcli.parsing import SEPARATOR, has_locations
from pgcli.records import Answer, DecodedImage, Task
from pgcli.rows import RowSchema
from pgcli.tasks import MAX_NEW_TOKENS, Question
from pgcli.text import byte_count
from pgcli.training.lora import add_lora, load_adapter, lora_settings, save_adapter
from pgcli.training.options import TrainOptions
from pgcli.training.rows import RowKey, TrainingRow, TrainingRows
from pgcli.training.task import (
    ImageBatch,
    ImageTask,
    Loss,
    Metrics,
    MicroBatches,
    TaskInputs,
    sum_over_chunks,
)

#: Tokens per micro-batch; more are not faster.
CPU_TOKENS, GPU_TOKENS = 2048, 32_768
#: Memory of a weight: in float32, with its gradient and two moments, or alone.
TRAINED_BYTES, FROZEN_BYTES = 16, 4
#: On a CPU, larger checkpoints recompute activations from the start: the system kills a process
#: that runs out of memory.
LARGE_BYTES = 10**9
IGNORE_INDEX = -100  # labels without a loss, as in torch's cross_entropy
CHUNK_BYTES = 2**28  # of float32 logits: 260 tokens of PaliGemma's vocabulary
#: Answers are truncated at this factor of the longest true answer, plus a margin, in tokens.
LENGTH_FACTOR, LENGTH_MARGIN = 2, 8
SCHEMA = RowSchema(timing=False)

#: The `image_key` and the prompt of a question; several rows give it several true answers.
Key = tuple[str, str]


def fitting_rows(
    rows: TrainingRows, tokenizer: Tokenizer, config: PaliGemmaConfig, faults: dict[RowKey, str]
) -> tuple[TrainingRows, array[int]]:
    """The rows that fit into the model after the image, and the lengths of their texts.

    Longer rows are not truncated; `faults` gets the reason. Raises NoInputError if no row fits.
    """
    room = config.decoder.max_positions - config.image_tokens
    kept: list[TrainingRow] = []
    lengths = array("I")
    for row in rows:
        prefix, suffix = tokenized(row, tokenizer, config.stop_tokens[0])
        length = len(prefix) + len(suffix)
        if length <= room:
            kept.append(row)
            lengths.append(length)
            continue
        faults[(*row.image_id, row.prompt, row.target)] = (
            f"Prompt and answer have {length:,} tokens; the model takes at most {room:,}."
        )
    if rows and not kept:
        raise NoInputError("no row's prompt and answer fit into the model", hint="shorten them")
    return rows.select(kept), lengths


def check_answers(checkpoint: Checkpoint) -> None:
    """Raise UsageError for a checkpoint other than PaliGemma, and InvalidCheckpoint."""
    if read_description(checkpoint.folder).kind != "paligemma":
        raise UsageError(
            f"{checkpoint.name} is not a PaliGemma, which train needs without <--task=>",
            hint="name a PaliGemma; <--task contrastive> trains two towers, <--task classify> "
            "a classifier",
        )


def make_answer_task(inputs: TaskInputs) -> AnswerTask:
    """The task of PaliGemma. Raises UsageError for a checkpoint of another kind."""
    options, checkpoint = inputs.options, inputs.checkpoint
    assert checkpoint is not None
    check_answers(checkpoint)
    folder = checkpoint.folder
    config = read_config(folder)
    tokenizer = read_tokenizer(folder, config)
    faults: dict[RowKey, str] = {}
    train, lengths = fitting_rows(inputs.train, tokenizer, config, faults)
    evaluation, _ = fitting_rows(inputs.evaluation, tokenizer, config, faults)
    inputs = replace(inputs, train=train, evaluation=evaluation, lengths=lengths)
    device, is_large = inputs.device, total_bytes(folder) > LARGE_BYTES
    model, dtype, save = load_learner(inputs, checkpoint, config)
    tokens = CPU_TOKENS if device.type == "cpu" else GPU_TOKENS
    fastest = max(1, tokens // (config.image_tokens + max(lengths)))
    fixed = options.micro_batch
    micro_batches = MicroBatches(fixed or fastest, is_fixed=fixed is not None)
    if device.type == "cpu" and is_large:
        recompute_activations(model)
    else:
        micro_batches.save_memory = partial(recompute_activations, model)
    preprocessing = read_preprocessing(folder, config.vision.resolution)
    task = AnswerTask(
        **inputs.fields(model, preprocessing, save, micro_batches, dtype), tokenizer=tokenizer
    )
    task.data.errors.reasons.update(faults)
    return task


def load_learner(
    inputs: TaskInputs, checkpoint: Checkpoint, config: PaliGemmaConfig
) -> tuple[PaliGemma, torch.dtype, Callable[[Path], None]]:
    """The model whose weights or adapters are trained, its dtype, and the function that saves it.

    Raises NoUsableDevice if full training does not fit the device.
    """
    options, device, folder = inputs.options, inputs.device, checkpoint.folder
    if options.method == "full":
        check_fits_device(options, device, checkpoint, config)
        model = weights.load_paligemma(folder, config, dtype=torch.float32, device=device)
        unfreeze(model, options.freeze)
        for layer in model.decoder.layers:
            assert isinstance(layer, GemmaDecoderLayer)
            layer.dropout = options.dropout
        save = partial(save_checkpoint, model, source=folder, dtype=torch.float32)
        return model, torch.float32, save
    # the dtype of inference, unless the processor only stores it
    is_slow = device.type == "cpu" and not has_bfloat16()
    dtype = choose_dtype(options.dtype, device, 0 if is_slow else total_bytes(folder))
    finish = freeze_in_int8 if options.quantize == "int8" else None
    model = weights.load_paligemma(folder, config, dtype=dtype, device=device, finish=finish)
    settings = lora_settings(options)
    add_lora(model, settings, options.seed)
    if options.adapter is not None:
        adapter = Checkpoint(options.adapter, Path(options.adapter))
        warn_of_another_base(adapter, checkpoint)
        load_adapter(model, adapter.folder)
    save = partial(
        save_adapter,
        model,
        settings,
        base_model=checkpoint.name,
        revision=checkpoint.revision,
        fingerprint=fingerprint_of(folder),
    )
    return model, dtype, save


def unfreeze(model: PaliGemma, frozen: Sequence[str]) -> None:
    """Train all weights of the model but those of the frozen parts."""
    model.requires_grad_(requires_grad=True)
    for name in frozen:
        model.get_submodule(name).requires_grad_(requires_grad=False)


def check_fits_device(
    options: TrainOptions, device: torch.device, checkpoint: Checkpoint, config: PaliGemmaConfig
) -> None:
    """Raise NoUsableDevice if full training does not fit the device, before the weights load."""
    model = weights.meta_model(config)
    unfreeze(model, options.freeze)
    needed = sum(
        weight.numel() * (TRAINED_BYTES if weight.requires_grad else FROZEN_BYTES)
        for weight in model.parameters()
    )
    free = free_bytes(device)
    if needed > free:
        raise NoUsableDevice(
            f"full training of {checkpoint.name} needs {byte_count(needed)} of memory and "
            f"more for the images, and {device} has {byte_count(free)}: the weights, their "
            "gradients and moments must fit on each device",
            hint="<--method lora> trains an adapter; <--freeze vision,projector> trains fewer "
            "weights",
        )


def recompute_activations(model: PaliGemma) -> bool:
    """Recompute activations in the backward pass; return whether that was off before."""
    is_new = not model.decoder.gradient_checkpointing
    model.decoder.gradient_checkpointing = True
    trains_vision = any(weight.requires_grad for weight in model.vision.parameters())
    model.vision.gradient_checkpointing = trains_vision
    return is_new


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


class TokenizedExample(NamedTuple):
    """The ids of a prompt (`bos` to newline) and of its answer (with the stop token)."""

    prefix: Sequence[int]
    suffix: Sequence[int]


class AnswerTokens(NamedTuple):
    """Text tokens after an image, padded on the right; IGNORE_INDEX marks labels without loss."""

    token_BT: Tensor
    position_BS: Tensor
    masks: AttentionMasks
    label_BT: Tensor

    @classmethod
    def of(
        cls,
        examples: Sequence[TokenizedExample],
        *,
        patches: int,
        window: int | None,
        device: torch.device,
    ) -> AnswerTokens:
        """The rows `[prompt answer]`; an answer's tokens are the labels of their predecessors."""
        count = len(examples)
        longest = max(len(prefix) + len(suffix) - 1 for prefix, suffix in examples)
        token_BT = torch.zeros(count, longest, dtype=torch.long)
        label_BT = torch.full_like(token_BT, IGNORE_INDEX)
        for row, (prefix, suffix) in enumerate(examples):
            tokens = [*prefix, *suffix[:-1]]
            token_BT[row, : len(tokens)] = torch.tensor(tokens)
            label_BT[row, len(prefix) - 1 : len(tokens)] = torch.tensor(suffix)
        prefix_B = torch.tensor([len(prefix) for prefix, _ in examples], device=device)
        masks = prefix_lm_masks(prefix_B + patches, patches + longest, window)
        position_S = torch.arange(1, patches + longest + 1, device=device)
        position_BS = position_S.expand(count, -1)
        return cls(token_BT.to(device), position_BS, masks, label_BT.to(device))


def prefix_lm_masks(prefix_B: Tensor, slots: int, window: int | None) -> AttentionMasks:
    """The masks (B, 1, S, S) of rows whose first `prefix_B` slots are image and prompt.

    Image and prompt attend to each other, whatever the window, as in transformers. An answer token
    attends to all earlier slots, in layers with a sliding window only to the last ones. Padding
    comes last, so no real token attends to it.
    """
    slot_S = torch.arange(slots, device=prefix_B.device)
    is_prefix_BS = slot_S < prefix_B[:, None]
    mask_BSS = is_prefix_BS[:, None] | (slot_S <= slot_S[:, None])
    if window is None or window >= slots:
        return AttentionMasks(mask_BSS[:, None], mask_BSS[:, None])
    is_near_SS = slot_S > slot_S[:, None] - window
    sliding_BSS = mask_BSS & (is_near_SS | is_prefix_BS[:, :, None])
    return AttentionMasks(mask_BSS[:, None], sliding_BSS[:, None])


def answer_loss(model: PaliGemma, patch_BPD: Tensor, tokens: AnswerTokens) -> Tensor:
    """The sum of the rows' losses, each the mean over its answer and stop token.

    Computes logits of answer tokens only, in chunks, and recomputes them in the backward pass. The
    final softcap is off in training, as PaliGemma 2's authors do.
    """
    hidden_BTD = model(patch_BPD, tokens.token_BT, tokens.position_BS, tokens.masks)
    is_answer_BT = tokens.label_BT != IGNORE_INDEX
    weight_BT = is_answer_BT / is_answer_BT.sum(1, keepdim=True)
    hidden_MD, label_M = hidden_BTD[is_answer_BT], tokens.label_BT[is_answer_BT]
    weight_M, decoder = weight_BT[is_answer_BT], model.decoder

    def loss_of_tokens(start: int, stop: int) -> Tensor:
        chunk = slice(start, stop)
        logit_mV = decoder.lm_head(hidden_MD[chunk], decoder.embed_tokens.weight)
        loss_m = F.cross_entropy(logit_mV.float(), label_M[chunk], reduction="none")
        return (loss_m * weight_M[chunk]).sum()

    chunk_tokens = max(1, CHUNK_BYTES // (4 * decoder.config.vocab_size))
    return sum_over_chunks(loss_of_tokens, len(label_M), chunk_tokens)


@dataclass
class TrueAnswers:
    """The distinct questions of rows in order, with their texts and ground truths."""

    texts: dict[Key, list[str]] = field(default_factory=dict)
    truths: Truths = field(default_factory=lambda: Truths("the rows", has_prompts=True))

    @classmethod
    def of(cls, rows: Iterable[TrainingRow]) -> TrueAnswers:
        """The questions of the rows."""
        questions = cls()
        for row in rows:
            truth = row.truth or LabelledImage(answers=(row.target,))
            questions.texts.setdefault(key_of(row), []).extend((row.target, *truth.answers))
            questions.truths.add(key_of(row), truth)
        return questions

    @property
    def main_metric(self) -> str | None:
        """The metric that selects the best weights; None if the tasks have different ones."""
        by_task: dict[str, list[JoinedRow]] = {}
        for row in self._joined({}):
            by_task.setdefault(row.task, []).append(row)
        main = {metrics_of(task, rows)[0] for task, rows in by_task.items()}
        return main.pop() if len(main) == 1 else None

    def ask(
        self, engine: InferenceEngine, batches: Iterable[ImageBatch]
    ) -> Iterator[tuple[Key, Answer]]:
        """The model's greedy answers to the questions of the batches, in order of completion."""
        index = {key: number for number, key in enumerate(self.texts)}
        keys = [*index]

        def images() -> Iterator[tuple[int, DecodedImage]]:
            for batch in batches:
                read = zip(batch.rows, batch.pixels_BRRC.numpy(), batch.sizes, strict=True)
                for row, pixels, size in read:
                    if (number := index.pop(key_of(row), None)) is not None:
                        prompt, values = split_locations(row.prompt)
                        region = region_of(values, *size)
                        item = replace(row.item, prompts=(prompt,), choices=(), region=region)
                        yield number, DecodedImage(item, *size, pixels, 0.0)

        tasks = {task_of_prompt(prompt) for _, prompt in keys}
        limits = {task: self._new_tokens(task, engine) for task in tasks}
        lengths = [limits[task_of_prompt(prompt)] for _, prompt in keys]
        sampling = [SamplingParams(max_new_tokens=length) for length in lengths]
        task = tasks.pop() if len(tasks) == 1 else "ask"
        question = Question(task, None, max(limits.values()))
        for number, answer in engine.ask(images(), question, sampling):
            yield keys[number], answer

    def measure(self, answers: Mapping[Key, Answer]) -> dict[str, float]:
        """The values of the tasks' metrics; a question without an answer counts as wrong."""
        return measured_values(self._joined(answers))

    def _joined(self, answers: Mapping[Key, Answer]) -> list[JoinedRow]:
        """The questions with their truths and answers, like rows of `pgcli ask`."""
        rows = []
        missing = {}
        for key, truth in self.truths.by_key.items():
            if (answer := answers.get((key[0], key[1] or ""))) is None:
                missing[key] = truth
            else:
                row = SCHEMA.row(answer) | {"image": key[0], "task": "ask", "prompt": key[1]}
                rows.append(joined_row(row, key, truth))
        return [*rows, *missing_rows(missing, (), by_prompt=True)]

    def _new_tokens(self, task: Task, engine: InferenceEngine) -> int:
        """The token limit of answers: enough for the true ones, at most the command's default."""
        longest = max(
            len(engine.tokenizer.encode_answer(text)) + 1  # the stop token
            for key, texts in self.texts.items()
            if task_of_prompt(key[1]) == task
            # the model gives the boxes of all rows of a question in one answer
            for text in (*texts, f" {SEPARATOR} ".join(dict.fromkeys(filter(has_locations, texts))))
        )
        limit = min(MAX_NEW_TOKENS[task], LENGTH_FACTOR * longest + LENGTH_MARGIN)
        return min(max(longest, limit), engine.model.config.max_answer_tokens)


def key_of(row: TrainingRow) -> Key:
    """The image and the prompt of a row."""
    return row.image_key, row.prompt
