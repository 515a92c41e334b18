"""transformers as a program under measurement: batches in inference mode, timed by stage.

B rows · C channels · R resolution · S slots of image and prompt · V vocabulary
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.ImageOps import exif_transpose
from torch import Tensor

from pgcli.bench.roofline import Stages
from pgcli.bench.runner import BenchInputs, BenchRun
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.stopwatch import Stopwatch
from pgcli.engine.oom import memory_named
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.siglip import normalize_pixels
from pgcli.verify.reference import SAFE_OPTIONS, generate_greedily, import_transformers

Tokens = dict[int, tuple[int, ...]]  # by row
#: Pixels of images in memory before they are resized: a batch of photographs takes gigabytes.
MAX_PIXELS = 2**26


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
        # the answers of both programs have the same length, whatever the checkpoint's own settings
        model.generation_config = import_transformers().GenerationConfig()
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
            image_token=self._config.image_token_id,
            image_slots=self._config.image_tokens,
            logits_processor=[timer],
            # a static cache of another size would be recompiled
            max_new_tokens=max(inputs.lengths if self._static else lengths),
            eos_token_id=None,
            cache_implementation="static" if self._static else None,
        )
        timer.end_batch()
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
            towers.vision_tower.register_forward_pre_hook(lambda *_: self._mark()),
            towers.multi_modal_projector.register_forward_hook(lambda *_: self._mark()),
        ]

    def __enter__(self) -> StageTimer:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def __call__(self, token_BS: Tensor, score_BV: Tensor) -> Tensor:
        if len(self._batches[-1]) == 3:
            self._mark()
        score_BV[:, self._vocabulary :] = -torch.inf
        if self._image_token < self._vocabulary:
            score_BV[:, self._image_token] = -torch.inf
        return score_BV

    def start_batch(self) -> None:
        self._batches.append([])
        self._mark()

    def end_batch(self) -> None:
        self._mark()

    def stages(self) -> Stages:
        """The seconds of all batches; the time before the vision tower counts as prefill."""
        between = self._stopwatch.between
        vision = prefill = decode = 0.0
        for start, vision_start, vision_end, prefill_end, end in self._batches:
            vision += between(vision_start, vision_end) / 1000
            prefill += (between(start, vision_start) + between(vision_end, prefill_end)) / 1000
            decode += between(prefill_end, end) / 1000
        return Stages(vision, prefill, decode)

    def _mark(self) -> None:
        self._batches[-1].append(self._stopwatch.mark())
