"""Constrain answers to JSON that fits a schema, by llguidance's matchers, one for each row.

B rows of this pass · R rows allocated · V vocabulary
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pgcli.answer_schema import compile_schema
from pgcli.engine.grammar import GrammarState
from pgcli.engine.sampler import GrammarMask
from pgcli.engine.tokenizer import Tokenizer
from pgcli.model.transfer import to_device


class JsonGrammar:
    """The answers that are JSON of a schema; location and mask tokens do not occur in them."""

    starts: tuple[GrammarState, ...] = ()

    def __init__(self, tokenizer: Tokenizer, schema: str, stop_tokens: Collection[int]):
        from llguidance import LLMatcher

        stops = [token for token in stop_tokens if token < tokenizer.size]
        self.matcher = LLMatcher(tokenizer.for_matchers(tuple(stops)), compile_schema(schema))
        self.is_text_V = torch.ones(tokenizer.size, dtype=torch.bool)
        for tokens in (tokenizer.locations, tokenizer.mask_codes):
            self.is_text_V[tokens.start : tokens.stop] = False

    def rows(self, *, max_rows: int, device: torch.device) -> JsonRows:
        """The states of rows."""
        return JsonRows(self, max_rows=max_rows, device=device)

    def advance(self, state: GrammarState, token: int) -> GrammarState:
        """The state of a sequence; its row has the matcher."""
        return state

    def truncated_by_limit(self, state: GrammarState, tokens_left: int) -> bool:
        """False: an answer ends only where its JSON does, or at the limit."""
        return False


class JsonRows:
    """The matcher of each row, whose masks are computed on the host: no step can be recorded.

    `state_RF` has the number of each row's matcher, and moves with the rows.
    """

    can_record = False

    def __init__(self, grammar: JsonGrammar, *, max_rows: int, device: torch.device):
        from llguidance import LLExecutor

        self._grammar, self._executor = grammar, LLExecutor()
        self._matchers: dict[int, Any] = {}
        self.state_RF = torch.zeros(max_rows, 1, dtype=torch.long, device=device)
        self._is_text_V = to_device(grammar.is_text_V, device)
        self._token_V = torch.arange(len(grammar.is_text_V), device=device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that `mask` and `advance` read and write."""
        return (self.state_RF,)

    def insert(self, rows: slice, states: Sequence[tuple[GrammarState, int]]) -> None:
        """Begin new answers in these rows."""
        used = {*self.state_RF.flatten().tolist()}
        self._matchers = {number: m for number, m in self._matchers.items() if number in used}
        first = max(self._matchers, default=0) + 1  # 0 are rows that are not in use
        numbers = range(first, first + len(states))
        self._matchers |= {number: self._grammar.matcher.deep_copy() for number in numbers}
        self.state_RF[rows, 0] = to_device(torch.tensor(numbers), self.state_RF.device)

    def _of(self, rows: slice) -> list[tuple[int, Any]]:
        """The places and matchers of the rows in use."""
        numbers = self.state_RF[rows, 0].tolist()
        matchers = [self._matchers.get(number) for number in numbers]
        return [(place, matcher) for place, matcher in enumerate(matchers) if matcher]

    def mask(self, rows: slice) -> GrammarMask:
        """The tokens (B, V) allowed next in these rows."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        size = len(self._token_V)
        bits = allocate_token_bitmask(rows.stop - (rows.start or 0), size)
        pairs = [(matcher, place) for place, matcher in self._of(rows)]
        fill_next_token_bitmask_par(self._executor, pairs, bits)
        allowed = np.unpackbits(bits.view(np.uint8), axis=1, count=size, bitorder="little")
        allowed_BV = to_device(torch.from_numpy(allowed.view(np.bool_)), self.state_RF.device)
        return GrammarMask(self._token_V, allowed_BV & self._is_text_V)

    def advance(self, rows: slice, token_B: Tensor) -> None:
        """Give each row's matcher its next token; none after a stop token."""
        tokens = token_B.tolist()
        for place, matcher in self._of(rows):
            if not matcher.is_stopped():
                matcher.consume_token(tokens[place])
