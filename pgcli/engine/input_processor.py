"""Turn an image's prompts into sequences."""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType

from pgcli.boxes import location_values, with_locations
from pgcli.engine.choices import make_candidates
from pgcli.engine.grammar import START_STATE, GrammarState
from pgcli.engine.sampler import SamplingParams
from pgcli.engine.sequence import Sequence
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.config import PaliGemmaConfig
from pgcli.records import Answer, DecodedImage, Fault, error_answer
from pgcli.tasks import Question

#: An upper bound for all tokens except runs of newlines or blanks.
CHARACTERS_PER_TOKEN = 64

_NO_REGIONS = Fault("no_prompt", "The row has a region, and this model has no location tokens.")
#: The sampling parameters of all rows, or of each row by its index; they may differ only in
#: `max_new_tokens`.
Sampling = SamplingParams | abc.Sequence[SamplingParams]


class InputProcessor:
    """Turns images into sequences; a prompt that leaves no slots for an answer is an error row.

    `starts` are the states of the grammar in which the answers of prompts begin.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: PaliGemmaConfig,
        sampling: Sampling,
        question: Question,
        *,
        model: str,
        starts: abc.Mapping[str, GrammarState] = MappingProxyType({}),
    ):
        self._tokenizer = tokenizer
        self._head_ids = tokenizer.encode_head(question.system)
        taken = config.image_tokens + len(self._head_ids)
        self._max_text_tokens = config.decoder.max_positions - taken
        self._sampling = sampling
        self._max_new_tokens = question.max_new_tokens
        self._starts = starts
        self._refused = partial(error_answer, task=question.task, model=model)
        # images share their candidates unless a manifest has a column of choices
        self._candidates = lru_cache(maxsize=1)(partial(make_candidates, tokenizer=tokenizer))

    def process(
        self, row_index: int, image: DecodedImage
    ) -> tuple[list[Sequence], list[tuple[int, Answer]]]:
        """The prompts as sequences, the first at `row_index`, and the error rows of the others."""
        item = image.item
        candidates = self._candidates(item.choices)
        lengths = [len(candidate.ids) + 1 for candidate in candidates]
        longest = max(lengths, default=self._max_new_tokens)
        values = self._location_values(image)
        region_fault = None
        if values is None:
            size = f"{image.width} x {image.height} pixels"
            region_fault = Fault("decode_failed", f"The region is outside the image ({size}).")
        elif values and not self._tokenizer.locations:
            region_fault, values = _NO_REGIONS, ()
        accepted, refused = [], []
        for index, prompt in enumerate(item.prompts, start=row_index):
            full = with_locations(prompt, values or ())
            fault, problem = region_fault, self._too_long(prompt)
            ids: tuple[int, ...] = ()
            if fault is None and not problem:
                ids = tuple(self._tokenizer.encode_prompt(prompt, values or ()))
                problem = self._problem(image, ids, longest)
            if fault is None and problem:
                fault = Fault("too_large", problem)
            if fault is None:
                accepted.append((index, full, ids, self._starts.get(prompt, START_STATE)))
            else:
                faulty = replace(image, pixels=None, fault=fault)
                refused.append((index, self._refused(faulty, full)))
        shared = self._sampling
        return [
            Sequence(
                row_index=index,
                prompt=full,
                prompt_ids=ids,
                max_new_tokens=sampling.max_new_tokens or self._max_new_tokens,
                head_ids=self._head_ids,
                sampling=sampling,
                key=f"{item.index} {full}",
                image=image,
                image_key=row_index,
                image_uses=len(accepted),
                candidates=candidates,
                start=start,
            )
            for index, full, ids, start in accepted
            for sampling in [shared if isinstance(shared, SamplingParams) else shared[index]]
        ], refused

    def _location_values(self, image: DecodedImage) -> tuple[int, ...] | None:
        """The location values of the image's region; None if that is outside the image."""
        if image.item.region is None:
            return ()
        assert image.width
        assert image.height
        return location_values(image.item.region, image.width, image.height)

    def _too_long(self, prompt: str) -> str:
        """Why a prompt is too long to be encoded; empty if it is not."""
        if len(prompt) <= self._max_text_tokens * CHARACTERS_PER_TOKEN:
            return ""
        return (
            f"The prompt has {len(prompt)} characters; the model has room for "
            f"{self._max_text_tokens} tokens."
        )

    def _problem(self, image: DecodedImage, ids: abc.Sequence[int], longest: int) -> str:
        """Why the prompt cannot be answered; empty if it can."""
        room = self._max_text_tokens - longest
        if len(ids) <= room:
            return ""
        if image.item.choices:
            return (
                f"The prompt has {len(ids)} tokens and the longest choice {longest - 1}; the model "
                f"has room for {self._max_text_tokens - 1} together."
            )
        return f"The prompt has {len(ids)} tokens; the model has room for {room}."
