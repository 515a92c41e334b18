"""The engine: a stream of pictures in, answers out as each ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pgcli import parse
from pgcli.checkpoints import files, weights
from pgcli.checkpoints.files import Preprocessing
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.batches import Request, batches
from pgcli.engine.device import Stopwatch, choose_device, choose_dtype, free_bytes
from pgcli.engine.generate import GREEDY, Growing, Limits, Sampling, generate
from pgcli.engine.memory import batch_size as fitting_batch_size
from pgcli.engine.tokens import Vocabulary
from pgcli.errors import NoUsableDevice
from pgcli.images import Square
from pgcli.model.paligemma import PaliGemma
from pgcli.model.siglip import normalise
from pgcli.records import Answer, Box, Fault, Picture, Piece, Task, error_answer

WINDOW_BATCHES = 4  # so many batches' requests are looked over for prompts of equal length
WINDOW_BYTES = 256 * 2**20


def load(
    checkpoint: Checkpoint,
    *,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
) -> Engine:
    """An engine for the checkpoint; `batch_size` None takes what fits into memory.

    Raises InvalidCheckpoint for files that are broken or not understood, NoUsableDevice where the
    device is missing or too small, UsageError for names that are neither device nor dtype.
    """
    folder = checkpoint.folder
    place = choose_device(device)
    number = choose_dtype(dtype, place, weights.total_bytes(folder))
    config = files.config(folder)
    vocabulary = Vocabulary.from_folder(folder)
    preprocessing = files.preprocessing(folder, config.vision.resolution)
    with _memory_named(f"the weights in {_name(number)}", "name a smaller model"):
        model = weights.load(folder, config, dtype=number, device=place)
    if batch_size is None:
        free = free_bytes(place)
        batch_size = fitting_batch_size(
            config, itemsize=number.itemsize, device=place.type, free=free
        )
    return Engine(model, vocabulary, preprocessing, label=checkpoint.label, batch_size=batch_size)


class Engine:
    """A loaded model with what it takes to be asked: its vocabulary and its way with pictures."""

    def __init__(
        self,
        model: PaliGemma,
        vocabulary: Vocabulary,
        preprocessing: Preprocessing,
        *,
        label: str,
        batch_size: int,
    ):
        self.model = model
        self.vocabulary = vocabulary
        self.label = label
        self.batch_size = batch_size
        self.square = Square(model.config.vision.resolution, preprocessing.resample)
        self._device = model.projector.weight.device
        self._dtype = model.projector.weight.dtype
        self._mean = torch.tensor(preprocessing.mean, device=self._device)
        self._std = torch.tensor(preprocessing.std, device=self._device)

    @property
    def device(self) -> str:
        return str(self._device)

    @property
    def dtype(self) -> str:
        return _name(self._dtype)

    def ask(
        self,
        stream: Iterable[tuple[int, Picture]],
        task: Task = "caption",
        max_new_tokens: int = 128,
        sampling: Sampling = GREEDY,
    ) -> Iterator[tuple[int, Answer]]:
        """The answers to each picture's prompts, with their places, in the order in which they end.

        In comes each picture with the place of its first row; its k-th prompt is answered at
        place + k. No more pictures are taken than are looked over for batches of equal length. A
        prompt too long for the model is an error row. A picture is encoded once for all its
        prompts.
        """
        limits = self._limits(max_new_tokens)
        refused: list[tuple[int, Answer]] = []
        admit = partial(self._admit, task=task, limits=limits, refused=refused)
        requests = (request for place, picture in stream for request in admit(place, picture))
        encoded: dict[int, Encoded] = {}
        for batch in batches(requests, size=self.batch_size, window=self._window()):
            yield from _drain(refused)
            with _memory_named(f"a batch of {len(batch)}", "--batch-size with a smaller number"):
                yield from self._answer(batch, encoded, task, limits, sampling)
        yield from _drain(refused)

    def _window(self) -> int:
        """How many requests may wait: a few batches' worth, and no more than their bytes allow."""
        fitting = WINDOW_BYTES // (3 * self.square.resolution**2)
        return max(self.batch_size, min(WINDOW_BATCHES * self.batch_size, fitting))

    def _limits(self, max_new_tokens: int) -> Limits:
        config = self.model.config
        return Limits(
            max_new_tokens=max_new_tokens,
            stop_tokens=frozenset(config.stop_tokens),
            vocabulary=min(self.vocabulary.size, config.decoder.vocab_size),
            image_token=config.image_token,
        )

    def _admit(
        self,
        place: int,
        picture: Picture,
        *,
        task: Task,
        limits: Limits,
        refused: list[tuple[int, Answer]],
    ) -> list[Request]:
        """The picture's prompts as requests; those too long for the model are refused instead."""
        config = self.model.config
        room = config.decoder.max_positions - config.image_tokens - limits.max_new_tokens
        admitted = []
        for number, prompt in enumerate(picture.item.prompts, start=place):
            ids = tuple(self.vocabulary.prompt(prompt))
            if len(ids) <= room:
                admitted.append((number, prompt, ids))
            else:
                message = f"The prompt has {len(ids)} tokens; the model has room for {room}."
                faulty = replace(picture, pixels=None, fault=Fault("too_large", message))
                row = error_answer(faulty, prompt, task=task, model=self.label)
                refused.append((number, row))
        return [
            Request(number, picture, prompt, ids, picture_key=place, shares=len(admitted))
            for number, prompt, ids in admitted
        ]

    @torch.inference_mode()
    def _answer(
        self,
        batch: list[Request],
        encoded: dict[int, Encoded],
        task: Task,
        limits: Limits,
        sampling: Sampling,
    ) -> list[tuple[int, Answer]]:
        self._encode(batch, encoded)
        patch_BPD = torch.stack([encoded[request.picture_key].patch_PD for request in batch])
        vision_ms = [self._take(encoded, request.picture_key) for request in batch]
        keys = [f"{request.picture.item.index} {request.prompt}" for request in batch]
        prompts = [request.ids for request in batch]
        rows = generate(self.model, patch_BPD, prompts, keys, limits, sampling)
        return [
            (request.place, self._row(request, row, task, share, len(batch)))
            for request, row, share in zip(batch, rows, vision_ms, strict=True)
        ]

    def _encode(self, batch: Sequence[Request], encoded: dict[int, Encoded]) -> None:
        """Run the eye once over those pictures of the batch that it has not seen."""
        new = {r.picture_key: r for r in batch if r.picture_key not in encoded}
        if not new:
            return
        watch = Stopwatch(self._device)
        squares = [torch.from_numpy(request.picture.pixels) for request in new.values()]
        start = watch.mark()
        pixels_BRRC = torch.stack(squares).to(self._device)
        patch_BPD = self.model.encode(normalise(pixels_BRRC, self._mean, self._std, self._dtype))
        each_ms = watch.between(start, watch.mark()) / len(new)
        for (key, request), patch_PD in zip(new.items(), patch_BPD, strict=True):
            encoded[key] = Encoded(patch_PD, request.shares, each_ms / request.shares)

    def _take(self, encoded: dict[int, Encoded], key: int) -> float:
        """One prompt's share of its picture's time; the last prompt lets the picture go."""
        known = encoded[key]
        known.shares_left -= 1
        if not known.shares_left:
            del encoded[key]
        return known.share_ms

    def _row(
        self, request: Request, row: Growing, task: Task, vision_ms: float, batch: int
    ) -> Answer:
        picture, item = request.picture, request.picture.item
        words = len(row.tokens) - (row.finish == "stop")
        probabilities = [math.exp(logprob) for logprob in row.logprobs[:words]]
        pieces = self.vocabulary.pieces(row.tokens[:words], probabilities)
        return Answer(
            index=item.index,
            id=item.id,
            image=item.image,
            width=picture.width,
            height=picture.height,
            task=task,
            prompt=request.prompt,
            answer="".join(piece.text for piece in pieces).strip(),
            boxes=_boxes(picture, pieces),
            tokens=len(row.tokens),
            finish=row.finish,
            logprob=sum(row.logprobs) / len(row.logprobs),
            load_ms=picture.load_ms,
            vision_ms=vision_ms,
            prefill_ms=row.prefill_ms,
            decode_ms=row.decode_ms,
            batch=batch,
            model=self.label,
            error=None,
            error_message=None,
            kept=item.kept,
        )


@dataclass(slots=True)
class Encoded:
    """What the eye saw of a picture, kept until the last of its prompts has been asked."""

    patch_PD: Tensor
    shares_left: int
    share_ms: float


def _boxes(picture: Picture, pieces: Sequence[Piece]) -> tuple[Box, ...]:
    """The answer's boxes on the upright picture: the model looked at its region only."""
    assert picture.width is not None
    assert picture.height is not None
    left, top, right, bottom = picture.region or (0, 0, picture.width, picture.height)
    return tuple(
        replace(
            box,
            xmin=box.xmin + left,
            ymin=box.ymin + top,
            xmax=box.xmax + left,
            ymax=box.ymax + top,
        )
        for box in parse.boxes(pieces, width=right - left, height=bottom - top)
    )


def _drain(answers: list[tuple[int, Answer]]) -> Iterator[tuple[int, Answer]]:
    while answers:
        yield answers.pop(0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def _memory_named(what: str, remedy: str) -> Iterator[None]:
    """Turn a device's exhausted memory into an error that says for what, and what to do."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise NoUsableDevice(f"the device has no memory left for {what}", hint=remedy) from error
