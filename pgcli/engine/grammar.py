"""Constrain answers to a grammar of boxes with given labels.

answer := nothing | object (" ; " object)*, and a stop token
object := ymin xmin ymax xmax " label"
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import InvalidCheckpoint

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
