"""The engine: a stream of pictures in, answers out as each ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from pgcli.checkpoints import files, weights
from pgcli.checkpoints.files import Preprocessing
from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.batches import Request, Waiting
from pgcli.engine.device import choose_device, choose_dtype, free_bytes
from pgcli.engine.features import Features
from pgcli.engine.generate import GREEDY, Limits, Sampling, generate
from pgcli.engine.memory import batch_size as fitting_batch_size
from pgcli.engine.memory import parameters
from pgcli.engine.rows import answer_of
from pgcli.engine.tokens import Vocabulary
from pgcli.errors import InvalidCheckpoint, NoUsableDevice, UsageError
from pgcli.images import Square
from pgcli.model.paligemma import PaliGemma
from pgcli.records import Answer, Fault, Picture, Task, error_answer

SHORTEST_PROMPT = 2  # the first token and the newline
WINDOW_BATCHES = 4  # so many batches' requests are looked over for prompts of equal length
WINDOW_BYTES = 256 * 2**20
CPU_ALLOCATOR = "DefaultCPUAllocator"  # its exhaustion is a plain RuntimeError of this name


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
    if vocabulary.size > config.decoder.vocab_size:
        raise InvalidCheckpoint(
            f"{folder}: tokenizer.json has {vocabulary.size} tokens, the model "
            f"{config.decoder.vocab_size}"
        )
    preprocessing = files.preprocessing(folder, config.vision.resolution)
    _insist_on_room(parameters(config) * number.itemsize, place)
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
        self._preprocessing = preprocessing

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
        features = Features(self.model, self._preprocessing)
        answer = partial(
            self._answer, features=features, task=task, limits=limits, sampling=sampling
        )
        waiting = Waiting(size=self.batch_size, window=self._window())
        for place, picture in stream:
            requests, refused = self._admit(place, picture, task, limits)
            yield from refused
            for request in requests:
                waiting.add(request)
                while waiting.ready():
                    yield from answer(waiting.take())
        while waiting:
            yield from answer(waiting.take())

    def _window(self) -> int:
        """How many requests may wait: a few batches' worth, and no more than their bytes allow."""
        fitting = WINDOW_BYTES // (3 * self.square.resolution**2)
        return max(self.batch_size, min(WINDOW_BATCHES * self.batch_size, fitting))

    def _limits(self, max_new_tokens: int) -> Limits:
        """Where answers end. Raises UsageError where they would leave no room for a prompt."""
        config = self.model.config
        most = config.decoder.max_positions - config.image_tokens - SHORTEST_PROMPT
        if max_new_tokens > most:
            raise UsageError(
                f"answers of {max_new_tokens} tokens leave this model no room for a prompt",
                hint=f"--max-new-tokens {most} at most",
            )
        return Limits(
            max_new_tokens=max_new_tokens,
            stop_tokens=frozenset(config.stop_tokens),
            vocabulary=self.vocabulary.size,
            image_token=config.image_token,
        )

    def _admit(
        self, place: int, picture: Picture, task: Task, limits: Limits
    ) -> tuple[list[Request], list[tuple[int, Answer]]]:
        """The picture's prompts as requests, and the rows of those too long for the model."""
        config = self.model.config
        room = config.decoder.max_positions - config.image_tokens - limits.max_new_tokens
        admitted, refused = [], []
        for number, prompt in enumerate(picture.item.prompts, start=place):
            ids = tuple(self.vocabulary.prompt(prompt))
            if len(ids) <= room:
                admitted.append((number, prompt, ids))
            else:
                message = f"The prompt has {len(ids)} tokens; the model has room for {room}."
                faulty = replace(picture, pixels=None, fault=Fault("too_large", message))
                row = error_answer(faulty, prompt, task=task, model=self.label)
                refused.append((number, row))
        requests = [
            Request(number, picture, prompt, ids, picture_key=place, shares=len(admitted))
            for number, prompt, ids in admitted
        ]
        return requests, refused

    @torch.inference_mode()
    def _answer(
        self,
        batch: list[Request],
        features: Features,
        task: Task,
        limits: Limits,
        sampling: Sampling,
    ) -> list[tuple[int, Answer]]:
        keys = [f"{request.picture.item.index} {request.prompt}" for request in batch]
        prompts = [request.ids for request in batch]
        with _memory_named(f"a batch of {len(batch)}", "--batch-size with a smaller number"):
            patch_BPD, vision_ms = features.of(batch)
            rows = generate(self.model, patch_BPD, prompts, keys, limits, sampling)
        told = partial(answer_of, vocabulary=self.vocabulary, task=task, model=self.label)
        return [
            (request.place, told(request, row, vision_ms=share, batch=len(batch)))
            for request, row, share in zip(batch, rows, vision_ms, strict=True)
        ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _insist_on_room(needed: int, device: torch.device) -> None:
    """Raise NoUsableDevice now rather than be killed in the middle of loading."""
    free = free_bytes(device)
    if needed > free:
        raise NoUsableDevice(
            f"the weights take {needed / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free",
            hint="--dtype bfloat16 halves float32; or name a smaller model",
        )


@contextmanager
def _memory_named(what: str, remedy: str) -> Iterator[None]:
    """Turn a device's exhausted memory into an error that says for what, and what to do."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        exhausted = not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError)
        if not exhausted and CPU_ALLOCATOR not in str(error):
            raise
        raise NoUsableDevice(f"the device has no memory left for {what}", hint=remedy) from error
