"""transformers under measurement, at its best: left-padded batches in inference mode.

B rows · C channels · R resolution · S slots of image and prompt · L tokens of an answer ·
V vocabulary
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pgcli.bench.roofline import Stages
from pgcli.bench.work import Run, Work
from pgcli.checkpoints.preprocessing import Preprocessing
from pgcli.device.select import Stopwatch
from pgcli.engine.oom import memory_named
from pgcli.engine.tokenizer import left_pad
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.siglip import normalize_pixels
from pgcli.proof import theirs


class Theirs:
    """A model of transformers with what it takes to be asked; `static` is its way with its cache.

    A static cache's decoding step is compiled by transformers itself, on GPUs.
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
        self._processor = theirs.imported().SiglipImageProcessor(
            size=dict.fromkeys(("height", "width"), config.vision.resolution),
            resample=preprocessing.resample,
            image_mean=list(preprocessing.mean),
            image_std=list(preprocessing.std),
        )

    @cached_property
    def _tokenizer(self) -> Any:
        library = theirs.imported()
        try:
            return library.AutoTokenizer.from_pretrained(self._folder, **theirs.SAFELY)
        except (OSError, ValueError):  # without a tokenizer_config.json it knows no class for it
            file = str(self._folder / "tokenizer.json")
            return library.PreTrainedTokenizerFast(tokenizer_file=file)

    @property
    def attention(self) -> dict[str, str]:
        """Which attention is active in each tower, as transformers names it."""
        towers = {
            "vision": self.model.model.vision_tower,
            "decoder": self.model.model.language_model,
        }
        return {name: str(tower.config._attn_implementation) for name, tower in towers.items()}

    def arrays(self, work: Work) -> Run:
        """From the pictures' pixels in memory to every row's tokens."""
        return self._run(work, partial(self._pixels, work), None)

    def files(self, work: Work, output: Path) -> Run:
        """From the pictures' files to rows of JSON in a file."""
        return self._run(work, partial(self._prepared, work), output)

    @torch.inference_mode()
    def _run(self, work: Work, pixels: Any, output: Path | None) -> Run:
        listener = Listener(self.model, self._device, self._vocabulary, self._config.image_token_id)
        told: dict[int, tuple[int, ...]] = {}
        began = perf_counter()
        with (
            listener,
            memory_named(f"transformers' batch of {work.batch}", "a smaller --batch-size"),
        ):
            for rows in work.batches:
                told |= self._answered(work, rows, pixels(rows), listener)
        if output is not None:
            self._write(work, told, output)
        seconds = perf_counter() - began
        return Run(seconds, listener.stages(), tuple(told[row] for row in range(work.rows)))

    def _answered(
        self, work: Work, rows: Sequence[int], pixels_BCRR: Tensor, listener: Listener
    ) -> dict[int, tuple[int, ...]]:
        """A batch's tokens by row, each cut where it ended."""
        token_BS, is_real_BS = self._padded([work.prompt(row) for row in rows])
        # a static cache of another size would be compiled for anew
        lengths = (
            work.lengths if self._static else [work.lengths[row] for row in rows if work.lengths]
        )
        most = max(lengths, default=0)
        stop_tokens = None if work.lengths else sorted(self._config.stop_tokens)
        self.model.generation_config = theirs.imported().GenerationConfig(
            do_sample=False,
            max_new_tokens=most or work.question.max_new_tokens,
            eos_token_id=stop_tokens,
            pad_token_id=0,
            cache_implementation="static" if self._static else None,
        )
        listener.begin()
        sequence_BS = self.model.generate(
            input_ids=token_BS,
            attention_mask=is_real_BS,
            # without them transformers takes the prompt for an answer, and reads it causally
            token_type_ids=torch.zeros_like(token_BS),
            pixel_values=pixels_BCRR,
            logits_processor=[listener],
        )
        listener.end()
        told = sequence_BS[:, token_BS.shape[1] :].tolist()
        ends = [work.lengths[row] for row in rows] if work.lengths else map(self._end, told)
        return {row: tuple(ids[:end]) for row, ids, end in zip(rows, told, ends, strict=True)}

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Rows (B, S) of the image's slots and the prompt, and where they are real."""
        image = [self._config.image_token_id] * self._config.image_tokens
        token_BS, is_real_BS = left_pad([[*image, *prompt] for prompt in prompts])
        real = torch.ones_like(token_BS) if is_real_BS is None else is_real_BS.long()
        return token_BS.to(self._device), real.to(self._device)

    def _end(self, ids: Sequence[int]) -> int:
        """How many tokens there are up to the stop token, itself counted."""
        stops = [place for place, token in enumerate(ids) if token in self._config.stop_tokens]
        return stops[0] + 1 if stops else len(ids)

    def _pixels(self, work: Work, rows: Sequence[int]) -> Tensor:
        """The pictures of a batch as its model reads them, made of the same pixels as ours."""
        squares = [work.pictures[work.picture(row)].pixels for row in rows]
        pixels_BRRC = torch.from_numpy(np.stack([one for one in squares if one is not None]))
        return normalize_pixels(pixels_BRRC.to(self._device), self._mean, self._std, self._dtype)

    def _prepared(self, work: Work, rows: Sequence[int]) -> Tensor:
        """The same from files, by its own processor."""
        images = []
        for row in rows:
            with Image.open(work.files[work.picture(row)]) as image:
                images.append(image.convert("RGB"))
        pixels: Tensor = self._processor(images, return_tensors="pt")["pixel_values"]
        return pixels.to(self._device, self._dtype)

    def _write(self, work: Work, told: dict[int, tuple[int, ...]], output: Path) -> None:
        order = range(work.rows)
        ids = [list(told[row]) for row in order]
        texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        with output.open("w", encoding="utf-8") as lines:
            for row, text in zip(order, texts, strict=True):
                name = str(work.files[work.picture(row)])
                lines.write(json.dumps({"image": name, "answer": text.strip()}) + "\n")


class Listener:
    """Tells stages apart while transformers generates, and keeps it from what nobody can say.

    As a logits processor it is called after every pass: the first ends the prefill. Tokens that
    are never generated here are ruled out in place, which costs a thousandth of a pass. The head
    is spared a detour, so that transformers is measured at its best.
    """

    def __init__(self, model: Any, device: torch.device, vocabulary: int, image_token: int):
        self._watch = Stopwatch(device)
        self._vocabulary, self._image_token = vocabulary, image_token
        self._batches: list[list[Any]] = []
        towers = model.model
        self._hooks = [
            # of rows that do not lie one after another PyTorch would multiply each by a copy of
            # the head of its own: on a processor that takes five times what all the rest does
            model.lm_head.register_forward_pre_hook(lambda _, given: (given[0].contiguous(),)),
            towers.vision_tower.register_forward_pre_hook(lambda *_: self._mark()),
            towers.multi_modal_projector.register_forward_hook(lambda *_: self._mark()),
        ]

    def __enter__(self) -> Listener:
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

    def begin(self) -> None:
        self._batches.append([])
        self._mark()

    def end(self) -> None:
        self._mark()

    def stages(self) -> Stages:
        """The seconds of all batches: what comes before the eye counts for reading the prompt."""
        between = self._watch.between
        vision = prefill = decode = 0.0
        for start, look, seen, read, end in self._batches:
            vision += between(look, seen) / 1000
            prefill += (between(start, look) + between(seen, read)) / 1000
            decode += between(read, end) / 1000
        return Stages(vision, prefill, decode)

    def _mark(self) -> None:
        self._batches[-1].append(self._watch.mark())
