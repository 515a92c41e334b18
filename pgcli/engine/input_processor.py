"""A picture's prompts -> the requests that wait for a batch, and the rows of those that cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from pgcli.engine.batches import Request
from pgcli.engine.choices import candidates
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import PaliGemmaConfig
from pgcli.parsing import GRID
from pgcli.records import Answer, DecodedImage, Fault, Region, Task, error_answer

#: More than any token but a run of newlines or blanks spells.
CHARACTERS_PER_TOKEN = 64


class InputProcessor:
    """Makes requests of pictures. A prompt that leaves its answer no room is refused, as a row."""

    def __init__(
        self,
        vocabulary: Tokenizer,
        config: PaliGemmaConfig,
        *,
        task: Task,
        max_new_tokens: int,
        model: str,
    ):
        self._vocabulary = vocabulary
        self._room = config.decoder.max_positions - config.image_tokens
        self._max_new_tokens = max_new_tokens
        self._refused = partial(error_answer, task=task, model=model)
        # the same candidates come with every picture, unless a manifest brings its own
        self._candidates = lru_cache(maxsize=1)(partial(candidates, vocabulary=vocabulary))

    def admit(
        self, place: int, picture: DecodedImage
    ) -> tuple[list[Request], list[tuple[int, Answer]]]:
        """The prompts as requests, the first at `place`, and the rows of those refused."""
        item = picture.item
        picked = self._candidates(item.choices)
        longest = max((len(one.ids) + 1 for one in picked), default=self._max_new_tokens)
        places = () if item.region is None else corners(item.region, picture)
        admitted, refused = [], []
        for number, prompt in enumerate(item.prompts, start=place):
            spelled = f"{prompt} {''.join(f'<loc{place:04d}>' for place in places or ())}".strip()
            problem = self._too_long(prompt)
            is_asked = places is not None and not problem
            ids = tuple(self._vocabulary.encode_prompt(prompt, places or ())) if is_asked else ()
            problem = problem or self._problem(picture, ids, longest)
            if problem:
                faulty = replace(picture, pixels=None, fault=Fault("too_large", problem))
                refused.append((number, self._refused(faulty, spelled)))
            else:
                admitted.append((number, spelled, ids))
        return [
            Request(number, picture, prompt, ids, place, len(admitted), picked)
            for number, prompt, ids in admitted
        ], refused

    def _too_long(self, prompt: str) -> str:
        """Why the prompt is not even encoded, which takes time and memory; empty where it is."""
        if len(prompt) <= self._room * CHARACTERS_PER_TOKEN:
            return ""
        return (
            f"The prompt has {len(prompt)} characters; the model has room for {self._room} tokens."
        )

    def _problem(self, picture: DecodedImage, ids: Sequence[int], longest: int) -> str:
        """Why the prompt cannot be asked; empty where it can."""
        if not ids:
            return f"The region lies outside the picture of {picture.width} x {picture.height}."
        room = self._room - longest
        if len(ids) <= room:
            return ""
        if picture.item.choices:
            return (
                f"The prompt has {len(ids)} tokens and the longest choice {longest - 1}; the model "
                f"has room for {self._room - 1} together."
            )
        return f"The prompt has {len(ids)} tokens; the model has room for {room}."


def corners(region: Region, picture: DecodedImage) -> tuple[int, ...] | None:
    """The places (0..1023) of ymin, xmin, ymax, xmax of what the picture has of the region.

    None where it has nothing of it.
    """
    width, height = picture.width, picture.height
    assert width
    assert height
    left, top = max(0.0, region[0]), max(0.0, region[1])
    right, bottom = min(float(width), region[2]), min(float(height), region[3])
    if left >= right or top >= bottom:
        return None
    sides = ((top, height), (left, width), (bottom, height), (right, width))
    return tuple(round(at / side * GRID) for at, side in sides)
