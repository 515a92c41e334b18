"""Constrain answers to a grammar of boxes with given labels.

    answer := nothing | object (" ; " object)*, and a stop token
    object := ymin xmin ymax xmax " label"

B rows · A tokens that occur in any answer, by their ids
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.engine.sampler import GrammarMask
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.model.transfer import to_device

CORNERS = 4


class GrammarState(NamedTuple):
    """The state of an answer: the location values of its last object, and its label's node.

    The answer of a prompt begins at the node `begin`, the labels of its objects at the one after.
    """

    corners: tuple[int, ...] = ()
    node: int = 0
    begin: int = 0


START = GrammarState()


class AllowedTokens(NamedTuple):
    """The tokens that may come next: locations by their values, and other tokens."""

    locations: range
    tokens: frozenset[int]


@dataclass(eq=False, slots=True)
class TrieNode:
    """A prefix of a label: the tokens that may follow, and whether the label may end here.

    If `ends`, the answer may end after this node; if `continues`, its tokens include the separator
    and another object may follow. `min_tokens_to_end` is the least number of tokens that end an
    answer, `max_object_tokens` the most of an object of its prompt, with a stop token.
    """

    children: dict[int, int] = field(default_factory=dict)
    ends: bool = False
    continues: bool = False
    min_tokens_to_end: int = 0
    max_object_tokens: int = 0


class Grammar:
    """The well-formed answers about the objects of each prompt: complete boxes, each with a label.

    `starts` are the states in which the answers of the prompts begin.
    A label has the tokens of the text between two locations, as in training. An object begins only
    where the longest label and a stop token still fit, so that the limit of new tokens truncates no
    object and does not affect the choice of labels.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompts: Sequence[Sequence[str]],
        stop_tokens: Collection[int],
        *,
        device: torch.device | str = "cpu",
    ):
        self._locations = tokenizer.locations
        self._stops = frozenset(token for token in stop_tokens if token < tokenizer.size)
        if not self._stops:
            raise InvalidCheckpoint("config.json names no eos_token_id that tokenizer.json has")
        self._nodes: list[TrieNode] = []
        self.starts = [self._add_prompt(tokenizer, objects) for objects in prompts]
        self._set_min_tokens_to_end()
        labels = {token for node in self._nodes for token in node.children}
        ids = sorted({*self._locations, *labels, *self._stops})
        self._device = torch.device(device)
        self._columns = {token: column for column, token in enumerate(ids)}
        self._masks: dict[AllowedTokens, Tensor] = {}
        self.token_A = torch.tensor(ids, device=self._device)

    def mask(self, rows: Iterable[tuple[GrammarState, int]]) -> GrammarMask:
        """The tokens that may come next in rows of a state and a number of tokens that fit."""
        allowed_BA = torch.stack([self.allowed(state, tokens_left) for state, tokens_left in rows])
        return GrammarMask(self.token_A, allowed_BA)

    def allowed(self, state: GrammarState, tokens_left: int) -> Tensor:
        """A mask (A,) of the grammar's tokens that may come next if `tokens_left` more fit."""
        tokens = self._allowed_tokens(state, tokens_left)
        if tokens not in self._masks:
            self._masks[tokens] = self._mask(tokens)
        return self._masks[tokens]

    def advance(self, state: GrammarState, token: int) -> GrammarState:
        """The state after one more token, which is allowed and not a stop token."""
        if token in self._locations:
            known = state.corners if len(state.corners) < CORNERS else ()
            corners = (*known, token - self._locations.start)
            return GrammarState(corners, state.begin + 1, state.begin)
        return state._replace(node=self._nodes[state.node].children[token])

    def truncated_by_limit(self, state: GrammarState, tokens_left: int) -> bool:
        """Whether an object could follow here if more than `tokens_left` tokens were allowed."""
        return self._allowed_tokens(state, tokens_left) != self._allowed_tokens(state, sys.maxsize)

    def _allowed_tokens(self, state: GrammarState, tokens_left: int) -> AllowedTokens:
        """The tokens that may come next and from which an answer can end within `tokens_left`."""
        if 0 < len(state.corners) < CORNERS:
            return AllowedTokens(self._location_values(state.corners), frozenset())
        node = self._nodes[state.node]
        opens = node.continues and tokens_left >= node.max_object_tokens
        tokens = {
            token
            for token, child in node.children.items()
            if self._nodes[child].min_tokens_to_end < tokens_left
        }
        return AllowedTokens(
            self._location_values(()) if opens else range(0),
            frozenset(tokens | self._stops if node.ends else tokens),
        )

    def _location_values(self, corners: tuple[int, ...]) -> range:
        """The values of the next corner; a maximum is greater than its minimum."""
        last = len(self._locations) - 1
        if len(corners) < 2:
            return range(last)
        return range(corners[len(corners) - 2] + 1, last + 1)

    def _add_prompt(self, tokenizer: Tokenizer, objects: Sequence[str]) -> GrammarState:
        """Add the nodes of a prompt about these objects; the state in which its answer begins."""
        begin = len(self._nodes)
        endings = [tokenizer.encode_text(f" {name}") for name in objects]
        longest = CORNERS + max(map(len, endings)) + 1
        self._nodes += [TrieNode(ends=True, continues=True), TrieNode()]
        for ending in endings:
            self._add_label(begin + 1, ending).ends = True
        for name in objects:
            self._add_label(begin + 1, tokenizer.encode_text(f" {name} ; ")).continues = True
        for node in self._nodes[begin:]:
            node.max_object_tokens = longest
        return GrammarState(node=begin, begin=begin)

    def _add_label(self, root: int, ids: Sequence[int]) -> TrieNode:
        """The node of a label with these tokens after `root`, created if missing."""
        at = root
        for token in ids:
            at = self._nodes[at].children.setdefault(token, len(self._nodes))
            if at == len(self._nodes):
                self._nodes.append(TrieNode())
        return self._nodes[at]

    def _set_min_tokens_to_end(self) -> None:
        """Compute `min_tokens_to_end` in reverse order, as children come after their parents."""
        for node in reversed(self._nodes):
            node.min_tokens_to_end = min(self._lengths(node))

    def _lengths(self, node: TrieNode) -> Iterator[int]:
        if node.ends:
            yield 1
        if node.continues:
            yield node.max_object_tokens
        for child in node.children.values():
            yield 1 + self._nodes[child].min_tokens_to_end

    def _mask(self, allowed: AllowedTokens) -> Tensor:
        first = self._locations.start
        tokens = [*(first + value for value in allowed.locations), *allowed.tokens]
        mask_A = torch.zeros(len(self._columns), dtype=torch.bool)
        mask_A[[self._columns[token] for token in tokens]] = True
        return to_device(mask_A, self._device)
