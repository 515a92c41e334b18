"""Counts boxes of labels that were not asked for, which models answer now and then."""

from __future__ import annotations

from collections import Counter

from pgcli.cli.job.row_hooks import RowHook
from pgcli.printable import printable
from pgcli.records import Answer
from pgcli.tasks import Question

MAX_LABELS = 1000  # more distinct ones are counted without their names
SHOWN = 5


class OtherLabels(RowHook):
    """Counts the boxes of each label that is not in its row's prompt; the summary names them."""

    def __init__(self, question: Question):
        self._objects, self._of_prompts = question.objects, question.objects_of_prompts
        self._counts: Counter[str] = Counter()
        self._boxes = self._others = 0

    def on_row(self, answer: Answer) -> None:
        prompt = answer.prompt.partition(" <loc")[0]  # without the region
        asked = {name.casefold() for name in self._of_prompts.get(prompt, self._objects)}
        self._boxes += len(answer.boxes)
        for box in answer.boxes:
            if box.label.casefold() not in asked:
                self._others += 1
                if box.label in self._counts or len(self._counts) < MAX_LABELS:
                    self._counts[box.label] += 1

    def summary(self) -> str:
        """How many boxes have other labels, and the most frequent of these."""
        if not self._others:
            return ""
        shown = self._counts.most_common(SHOWN)
        names = ", ".join(f"{printable(label)} {count:,}" for label, count in shown)
        more = ", ..." if len(self._counts) > SHOWN else ""
        return f"{self._others:,} of {self._boxes:,} boxes were not asked for: {names}{more}"
