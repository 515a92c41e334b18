"""Constrain answers to a grammar of boxes, whose states of all rows are on the device.

answer := nothing | object (" ; " object)*, and a stop token
object := ymin xmin ymax xmax " label"

B rows of this pass · R rows allocated · F fields of a state · A tokens of all answers, by id ·
E edges between nodes · D the most edges of a node
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from pgcli.engine.sampler import GrammarMask
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint
from pgcli.model.transfer import to_device

CORNER_COUNT = 4


class GrammarState(NamedTuple):
    """The state of an answer: the location values of its last object, and its label's node.

    The answer of a prompt begins at the node `begin`, the labels of its objects at the one after.
    """

    corners: tuple[int, ...] = ()
    node: int = 0
    begin: int = 0


START_STATE = GrammarState()


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
    ):
        self.locations = tokenizer.locations
        self.stops = frozenset(token for token in stop_tokens if token < tokenizer.size)
        if not self.stops:
            raise InvalidCheckpoint("config.json names no eos_token_id that tokenizer.json has")
        self.nodes: list[TrieNode] = []
        self.starts = [self._add_prompt(tokenizer, objects) for objects in prompts]
        self._set_min_tokens_to_end()

    def advance(self, state: GrammarState, token: int) -> GrammarState:
        """The state after one more token, which is allowed and not a stop token."""
        if token in self.locations:
            known = state.corners if len(state.corners) < CORNER_COUNT else ()
            corners = (*known, token - self.locations.start)
            return GrammarState(corners, state.begin + 1, state.begin)
        return state._replace(node=self.nodes[state.node].children[token])

    def truncated_by_limit(self, state: GrammarState, tokens_left: int) -> bool:
        """Whether an object could follow here if more than `tokens_left` tokens were allowed."""
        if 0 < len(state.corners) < CORNER_COUNT:
            return False
        node = self.nodes[state.node]
        if node.continues and tokens_left < node.max_object_tokens:
            return True
        children = (self.nodes[child] for child in node.children.values())
        return any(child.min_tokens_to_end >= tokens_left for child in children)

    def rows(self, *, max_rows: int, device: torch.device) -> GrammarRows:
        """The states of rows."""
        return GrammarRows(self, max_rows=max_rows, device=device)

    def _add_prompt(self, tokenizer: Tokenizer, objects: Sequence[str]) -> GrammarState:
        """Add the nodes of a prompt about these objects; the state in which its answer begins."""
        begin = len(self.nodes)
        endings = [tokenizer.encode_text(f" {name}") for name in objects]
        longest = CORNER_COUNT + max(map(len, endings)) + 1
        self.nodes += [TrieNode(ends=True, continues=True), TrieNode()]
        for ending in endings:
            self._add_label(begin + 1, ending).ends = True
        for name in objects:
            self._add_label(begin + 1, tokenizer.encode_text(f" {name} ; ")).continues = True
        for node in self.nodes[begin:]:
            node.max_object_tokens = longest
        return GrammarState(node=begin, begin=begin)

    def _add_label(self, root: int, ids: Sequence[int]) -> TrieNode:
        """The node of a label with these tokens after `root`, created if missing."""
        at = root
        for token in ids:
            at = self.nodes[at].children.setdefault(token, len(self.nodes))
            if at == len(self.nodes):
                self.nodes.append(TrieNode())
        return self.nodes[at]

    def _set_min_tokens_to_end(self) -> None:
        """Compute `min_tokens_to_end` in reverse order, as children come after their parents."""
        for node in reversed(self.nodes):
            node.min_tokens_to_end = min(self._lengths(node))

    def _lengths(self, node: TrieNode) -> Iterator[int]:
        if node.ends:
            yield 1
        if node.continues:
            yield node.max_object_tokens
        for child in node.children.values():
            yield 1 + self.nodes[child].min_tokens_to_end


#: The fields of a state: its node, the first node of its prompt's answers, the number of corners of
#: its object so far, the first two corners, and the remaining tokens.
NODE, BEGIN, COUNT, FIRST, SECOND, LEFT = range(6)
NEVER = 2**31  # more tokens than any answer has left


class Tables(NamedTuple):
    """A grammar as tensors; the edges of a node are consecutive.

    `needed_E` is the number of tokens, including the edge's own, that an answer needs to end after
    the edge; `opening_N` the number for another object and a stop token.
    """

    token_A: Tensor
    location_A: Tensor  # its value, or -1
    is_stop_A: Tensor
    column_E: Tensor
    child_E: Tensor
    needed_E: Tensor
    first_edge_N: Tensor
    edges_N: Tensor
    ends_N: Tensor
    opening_N: Tensor
    edge_D: Tensor  # 0, 1, ... up to the most edges of a node

    @classmethod
    def of(cls, grammar: Grammar, device: torch.device) -> Tables:
        nodes, places = grammar.nodes, grammar.locations
        ids = sorted({*places, *grammar.stops, *(t for node in nodes for t in node.children)})
        columns = {token: column for column, token in enumerate(ids)}
        edges = [(columns[t], child) for node in nodes for t, child in node.children.items()]
        counts = [len(node.children) for node in nodes]
        values = (
            ids,
            [token - places.start if token in places else -1 for token in ids],
            [token in grammar.stops for token in ids],
            [column for column, _ in edges],
            [child for _, child in edges],
            [1 + nodes[child].min_tokens_to_end for _, child in edges],
            [*accumulate(counts[:-1], initial=0)],
            counts,
            [node.ends for node in nodes],
            [node.max_object_tokens if node.continues else NEVER for node in nodes],
            [*range(max(counts))],
        )
        return cls(*(to_device(torch.tensor(value), device) for value in values))


class GrammarRows:
    """The state of each row, the tokens that it allows, and the state after a token."""

    can_record = True

    def __init__(self, grammar: Grammar, *, max_rows: int, device: torch.device):
        self._tables = Tables.of(grammar, device)
        self._last = len(grammar.locations) - 1
        self.state_RF = torch.zeros(max_rows, 6, dtype=torch.long, device=device)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that `mask` and `advance` read and write."""
        return self.state_RF, *self._tables

    def insert(self, rows: slice, states: Sequence[tuple[GrammarState, int]]) -> None:
        """Set rows to these states, with the numbers of remaining tokens."""
        fields = [
            [state.node, state.begin, len(state.corners), *(*state.corners, 0, 0)[:2], tokens]
            for state, tokens in states
        ]
        self.state_RF[rows] = to_device(torch.tensor(fields), self.state_RF.device)

    def mask(self, rows: slice) -> GrammarMask:
        """The tokens allowed next in these rows, so that their answers end within the limit."""
        tables = self._tables
        node_B, _, count_B, first_B, second_B, left_B = self.state_RF[rows].unbind(1)
        in_object_B = (count_B > 0) & (count_B < CORNER_COUNT)
        # a maximum is greater than its minimum
        least_B = torch.where(count_B == 2, first_B + 1, 0)
        least_B = torch.where(count_B == 3, second_B + 1, least_B)
        most_B = self._last - (count_B % CORNER_COUNT < 2).long()
        opens_B = in_object_B | (left_B >= tables.opening_N[node_B])
        value_1A = tables.location_A[None]
        allowed_BA = (value_1A >= least_B[:, None]) & (value_1A <= most_B[:, None])
        allowed_BA &= opens_B[:, None]
        edge_BD, is_edge_BD = self._edges(node_B)
        is_edge_BD &= (tables.needed_E[edge_BD] <= left_B[:, None]) & ~in_object_B[:, None]
        # padding is written to an extra last column, which is dropped
        column_BD = torch.where(is_edge_BD, tables.column_E[edge_BD], len(tables.token_A))
        words_Bx = allowed_BA.new_zeros(len(allowed_BA), len(tables.token_A) + 1)
        allowed_BA |= words_Bx.scatter_(1, column_BD, True)[:, :-1]
        ends_B = tables.ends_N[node_B] & ~in_object_B
        allowed_BA |= tables.is_stop_A & ends_B[:, None]
        return GrammarMask(tables.token_A, allowed_BA)

    def advance(self, rows: slice, token_B: Tensor) -> None:
        """The states after one more token each, which is allowed; after a stop token, any."""
        tables, state_BF = self._tables, self.state_RF[rows]
        node_B, begin_B, count_B, first_B, second_B, left_B = state_BF.unbind(1)
        column_B = torch.searchsorted(tables.token_A, token_B)
        value_B = tables.location_A[column_B]
        is_location_B = value_B >= 0
        corners_B = torch.where(is_location_B, count_B % CORNER_COUNT + 1, count_B)
        edge_BD, is_edge_BD = self._edges(node_B)
        is_edge_BD &= tables.column_E[edge_BD] == column_B[:, None]
        child_B = (tables.child_E[edge_BD] * is_edge_BD).sum(1)
        fields = (
            torch.where(is_location_B, begin_B + 1, child_B),
            begin_B,
            corners_B,
            torch.where(is_location_B & (corners_B == 1), value_B, first_B),
            torch.where(is_location_B & (corners_B == 2), value_B, second_B),
            left_B - 1,
        )
        state_BF.copy_(torch.stack(fields, dim=1))

    def _edges(self, node_B: Tensor) -> tuple[Tensor, Tensor]:
        """The indices (B, D) of each node's edges, and which are edges and not padding."""
        tables = self._tables
        is_edge_BD = tables.edge_D < tables.edges_N[node_B][:, None]
        edge_BD = tables.first_edge_N[node_B][:, None] + tables.edge_D
        return edge_BD.clamp(max=len(tables.child_E) - 1), is_edge_BD
