"""The programs under measurement: pgcli with the engine of its runs, and transformers, by stage.

B rows · C channels · R resolution · S slots of image and prompt · V vocabulary
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from PIL import Image
from PIL.ImageOps import exif_transpose
from torch import Tensor

from pgcli.bench.roofline import Stages
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.machine import decoding_processes
from pgcli.device.select import Stopwatch
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import memory_named
from pgcli.engine.sampler import SamplingParams
from pgcli.engine.sequence import Sequence as EngineSequence
from pgcli.errors import UsageError
from pgcli.images import ImageDecoder
from pgcli.images.pool import decode_ahead
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.siglip import normalize_pixels
from pgcli.output.lines import json_line
from pgcli.records import Answer, DecodedImage, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.run.input_rows import answer_items
from pgcli.run.state.lines import RowFile
from pgcli.tasks import Question
from pgcli.verify.reference import SAFE_OPTIONS, generate_greedily, import_transformers

Tokens = dict[int, tuple[int, ...]]  # by row
#: Pixels of images in memory before they are resized: a batch of photographs takes gigabytes.
MAX_PIXELS = 2**26


@dataclass(frozen=True)
class BenchInputs:
    """A row for each image, all with the prompt of the question, in batches of `batch`.

    `head_ids` are the tokens before an image, `prompt_ids` those after it, `files` the images'
    files, and `lengths` the rows' exact numbers of tokens. With `fast_decode` pgcli decodes files
    at a reduced size.
    """

    images: Sequence[DecodedImage]
    files: Sequence[Path]
    question: Question
    prompt_ids: Sequence[int]
    lengths: Sequence[int]
    batch: int
    head_ids: Sequence[int] = ()
    fast_decode: bool = False


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run: its wall-clock seconds, the model's seconds by stage, and each row's tokens.

    `start_seconds` passed before the first image was decoded, while decoding processes started.
    """

    seconds: float
    stages: Stages
    tokens: tuple[tuple[int, ...], ...]
    start_seconds: float = 0.0

    @property
    def clock_seconds(self) -> float:
        """The wall-clock seconds after the start."""
        return self.seconds - self.start_seconds


class TokenRecorder:
    """Makes an engine answer with exact numbers of tokens, by row index, and records the tokens.

    Batches never shrink, so the measured batch size is the requested one. `first_image` is the time
    at which the first image arrived.
    """

    def __init__(self, lengths: Sequence[int]):
        self.tokens: dict[int, tuple[int, ...]] = {}
        self.first_image: float | None = None
        self._sampling = [
            SamplingParams(max_new_tokens=length, ignore_eos=True) for length in lengths
        ]

    def ask(
        self,
        engine: InferenceEngine,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Question,
    ) -> Iterator[tuple[int, Answer]]:
        """The engine's answers; records their tokens."""
        engine.batch_limits.is_fixed = True
        return engine.ask(self._noted(stream), question, self._sampling, on_finish=self._record)

    def _noted(
        self, stream: Iterable[tuple[int, DecodedImage]]
    ) -> Iterator[tuple[int, DecodedImage]]:
        for numbered in stream:
            self.first_image = self.first_image or perf_counter()
            yield numbered

    def _record(self, sequence: EngineSequence) -> None:
        self.tokens[sequence.row_index] = tuple(sequence.tokens)


class EngineRunner:
    """The engine, which makes its own batches from a stream of images."""

    name = "pgcli"

    def __init__(self, engine: InferenceEngine):
        self._engine = engine

    def run_arrays(self, inputs: BenchInputs) -> BenchRun:
        """From the images' pixels in memory to every row's tokens."""
        self._engine.batch_size = inputs.batch
        recorder, prompts = TokenRecorder(inputs.lengths), inputs.question.templates or ()
        start = perf_counter()
        stream = (
            (number, replace(image, item=replace(image.item, prompts=prompts)))
            for number, image in enumerate(inputs.images)
        )
        rows = recorder.ask(self._engine, stream, inputs.question)
        answers = [answer for _, answer in rows]
        return _run(perf_counter() - start, 0.0, answers, recorder)

    def run_files(self, inputs: BenchInputs, output: Path) -> BenchRun:
        """From the images' files to rows of JSON in a file, as a command writes them.

        The decoding processes of a command start while the model loads; here their start is
        measured separately, up to the first decoded image.
        """
        self._engine.batch_size = inputs.batch
        recorder, start = TokenRecorder(inputs.lengths), perf_counter()
        answers = []
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        with closing(RowFile(descriptor, output)) as rows:
            for answer in self._answers(inputs, recorder):
                rows.append(json_line(answer, RowSchema()).encode())
                answers.append(answer)
        end, first_image = perf_counter(), recorder.first_image or start
        return _run(end - start, first_image - start, answers, recorder)

    def _answers(self, inputs: BenchInputs, recorder: TokenRecorder) -> Iterator[Answer]:
        """The answers of the images' files, which are decoded as for a command."""
        engine, question = self._engine, inputs.question
        prompts = question.templates or ()
        names = enumerate(map(str, inputs.files))
        return answer_items(
            (Item(number, name, name, path=name, prompts=prompts) for number, name in names),
            partial(
                decode_ahead,
                decoder=ImageDecoder(replace(engine.spec, fast_decode=inputs.fast_decode)),
                workers=None,
                total=len(inputs.files),
                default_workers=decoding_processes(engine.device),
            ),
            lambda stream: recorder.ask(engine, stream, question),
            partial(error_answer, task=question.task, model=engine.label),
        )


def _run(
    seconds: float, start: float, answers: Iterable[Answer], recorder: TokenRecorder
) -> BenchRun:
    vision = prefill = decode = 0.0
    for answer in answers:
        if answer.error is not None:
            raise UsageError(
                f"cannot measure with {answer.id}: {answer.error_message}",
                hint="name a folder of readable images with --source, or drop it",
            )
        vision += (answer.vision_ms or 0.0) / 1000
        prefill += (answer.prefill_ms or 0.0) / 1000
        decode += (answer.decode_ms or 0.0) / 1000
    tokens = tuple(recorder.tokens[row] for row in sorted(recorder.tokens))
    return BenchRun(seconds, Stages(vision, prefill, decode), tokens, start)


class ReferenceRunner:
    """transformers' model with its tokenizer and image processor; `static` uses a static cache.

    On GPUs, transformers compiles the decode step of a static cache.
    """

    def __init__(
        self,
        model: Any,
        folder: Path,
        config: PaliGemmaConfig,
        preprocessing: Preprocessing,
        *,
        vocabulary: int,
        static: bool = False,
    ):
        weight = model.lm_head.weight
        self.name = "transformers, static cache" if static else "transformers"
        self.model, self._static, self._vocabulary = model, static, vocabulary
        self._folder, self._config = folder, config
        self._device, self._dtype = weight.device, weight.dtype
        self._mean = torch.tensor(preprocessing.mean, device=self._device)
        self._std = torch.tensor(preprocessing.std, device=self._device)
        self._processor = import_transformers().SiglipImageProcessor(
            size=dict.fromkeys(("height", "width"), config.vision.resolution),
            resample=preprocessing.resample,
            image_mean=list(preprocessing.mean),
            image_std=list(preprocessing.std),
        )

    @cached_property
    def _tokenizer(self) -> Any:
        library = import_transformers()
        try:
            return library.AutoTokenizer.from_pretrained(self._folder, **SAFE_OPTIONS)
        except (OSError, ValueError):  # no tokenizer_config.json names its class
            file = str(self._folder / "tokenizer.json")
            return library.PreTrainedTokenizerFast(tokenizer_file=file)

    @property
    def attention(self) -> dict[str, str]:
        """transformers' name of the attention implementation of each tower."""
        towers = {
            "vision": self.model.model.vision_tower,
            "decoder": self.model.model.language_model,
        }
        return {name: str(tower.config._attn_implementation) for name, tower in towers.items()}

    def run_arrays(self, inputs: BenchInputs) -> BenchRun:
        """From the images' pixels in memory to every row's tokens."""
        return self._run(inputs, partial(self._decoded_pixels, inputs), None)

    def run_files(self, inputs: BenchInputs, output: Path) -> BenchRun:
        """From the images' files to rows of JSON in a file."""
        return self._run(inputs, partial(self._file_pixels, inputs), output)

    @torch.inference_mode()
    def _run(
        self, inputs: BenchInputs, pixels: Callable[[Sequence[int]], Tensor], output: Path | None
    ) -> BenchRun:
        timer = StageTimer(self.model, self._device, self._vocabulary, self._config.image_token_id)
        tokens: Tokens = {}
        start = perf_counter()
        with (
            timer,
            memory_named(f"transformers' batch of {inputs.batch}", "a smaller --batch-size"),
        ):
            for first in range(0, len(inputs.images), inputs.batch):
                rows = range(len(inputs.images))[first : first + inputs.batch]
                tokens |= self._generate(inputs, rows, pixels(rows), timer)
        if output is not None:
            self._write(inputs, tokens, output)
        seconds = perf_counter() - start
        return BenchRun(seconds, timer.stages(), tuple(tokens[row] for row in sorted(tokens)))

    def _generate(
        self, inputs: BenchInputs, rows: Sequence[int], pixels_BCRR: Tensor, timer: StageTimer
    ) -> Tokens:
        """The tokens of a batch's rows, each truncated at its length."""
        lengths = [inputs.lengths[row] for row in rows]
        timer.start_batch()
        sequence_BS, start = generate_greedily(
            self.model,
            pixels_BCRR,
            [inputs.prompt_ids] * len(rows),
            head=inputs.head_ids,
            image_token=self._config.image_token_id,
            image_slots=self._config.image_tokens,
            logits_processor=[timer],
            # a static cache of another size would be recompiled
            max_new_tokens=max(inputs.lengths if self._static else lengths),
            eos_token_id=None,
            cache_implementation="static" if self._static else None,
        )
        timer.mark()
        generated = sequence_BS[:, start:].tolist()
        return {
            row: tuple(ids[:length])
            for row, ids, length in zip(rows, generated, lengths, strict=True)
        }

    def _decoded_pixels(self, inputs: BenchInputs, rows: Sequence[int]) -> Tensor:
        """The normalized images of a batch, from the same pixels that pgcli's engine gets."""
        images = [inputs.images[row].pixels for row in rows]
        pixels_BRRC = torch.from_numpy(np.stack([image for image in images if image is not None]))
        return normalize_pixels(pixels_BRRC.to(self._device), self._mean, self._std, self._dtype)

    def _file_pixels(self, inputs: BenchInputs, rows: Sequence[int]) -> Tensor:
        """The images of a batch, read from files by transformers' image processor."""
        images: list[Image.Image] = []
        pixels: list[Tensor] = []
        for row in rows:
            with Image.open(inputs.files[row]) as image:
                images.append(exif_transpose(image).convert("RGB"))  # like transformers' load_image
            if row == rows[-1] or sum(i.width * i.height for i in images) > MAX_PIXELS:
                pixels.append(self._processor(images, return_tensors="pt")["pixel_values"])
                images.clear()
        return torch.cat(pixels).to(self._device, self._dtype)

    def _write(self, inputs: BenchInputs, tokens: Tokens, output: Path) -> None:
        ids = [list(tokens[row]) for row in sorted(tokens)]
        texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        with output.open("w", encoding="utf-8") as lines:
            for file, text in zip(inputs.files, texts, strict=True):
                lines.write(json.dumps({"image": str(file), "answer": text.strip()}) + "\n")


class StageTimer:
    """Records the time of each stage, and masks tokens that pgcli never generates.

    It is a logits processor, which transformers calls after every pass; the first call ends the
    prefill. Masking the logits takes a thousandth of a pass. The input of the LM head is made
    contiguous, so that transformers runs as fast as it can.
    """

    def __init__(self, model: Any, device: torch.device, vocabulary: int, image_token: int):
        self._stopwatch = Stopwatch(device)
        self._vocabulary, self._image_token = vocabulary, image_token
        self._batches: list[list[Any]] = []
        towers = model.model
        self._hooks = [
            # for non-contiguous rows PyTorch copies the head's weights for each row, which on a CPU
            # takes five times as long as everything else
            model.lm_head.register_forward_pre_hook(lambda _, args: (args[0].contiguous(),)),
            towers.vision_tower.register_forward_pre_hook(lambda *_: self.mark()),
            towers.multi_modal_projector.register_forward_hook(lambda *_: self.mark()),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def __call__(self, token_BS: Tensor, score_BV: Tensor) -> Tensor:
        if len(self._batches[-1]) == 3:
            self.mark()
        score_BV[:, self._vocabulary :] = -torch.inf
        if self._image_token < self._vocabulary:
            score_BV[:, self._image_token] = -torch.inf
        return score_BV

    def start_batch(self) -> None:
        self._batches.append([])
        self.mark()

    def mark(self) -> None:
        self._batches[-1].append(self._stopwatch.mark())

    def stages(self) -> Stages:
        """The seconds of all batches; the time before the vision tower counts as prefill."""
        between = self._stopwatch.between
        vision = prefill = decode = 0.0
        for start, vision_start, vision_end, prefill_end, end in self._batches:
            vision += between(vision_start, vision_end) / 1000
            prefill += (between(start, vision_start) + between(vision_end, prefill_end)) / 1000
            decode += between(prefill_end, end) / 1000
        return Stages(vision, prefill, decode)


Runner: TypeAlias = EngineRunner | ReferenceRunner
