"""VQA accuracy, with the numbers of the data set's `vqaEval.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric

CACHED_ANSWERS = 2**16  # most answers of a data set are given often
MATCHES_FOR_FULL_SCORE = 3  # of the other annotators
MIN_ANSWERS = MATCHES_FOR_FULL_SCORE + 1  # with which an answer can score 1
ARTICLES = frozenset({"a", "an", "the"})
NUMBERS = {
    word: str(value)
    for value, word in enumerate("zero one two three four five six seven eight nine ten".split())
} | {"none": "0"}
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
PERIOD = re.compile(r"\.(?!\d)")
MAX_PERIODS = int(re.UNICODE)  # upstream passes the flag in the place of the count
COMMA_IN_NUMBER = re.compile(r"\d,\d")
#: Words that are corrected where their apostrophe is missing; upstream corrects no others.
CONTRACTED = """
ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd
how'll how's I'm I've isn't it'd it'll ma'am mightn't might've mustn't must've needn't not've
o'clock oughtn't shan't should've shouldn't somebody'll somebody's someone'd someone'll someone's
something'd something'll that's there'd there're there's they'd they'll they're they've 'twas
wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd who'll
who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're you've
""".split()
#: Words that may miss one of several apostrophes.
TWICE_CONTRACTED = """
couldn't've hadn't've he'd've I'd've it'd've mightn't've 'ow's'at she'd've shouldn't've
somebody'd've someone'd've something'd've there'd've they'd've we'd've who'd've wouldn't've
y'all'll y'all'd've you'd've
""".split()


def spellings() -> dict[str, str]:
    """The words that are corrected, and their corrections."""
    known = {word.replace("'", ""): word for word in CONTRACTED}
    for word in TWICE_CONTRACTED:
        marks = [index for index, letter in enumerate(word) if letter == "'"]
        known |= {word[:index] + word[index + 1 :]: word for index in marks}
    return known | {"somebody'd": "somebodyd"}  # upstream's spelling


SPELLINGS = spellings()


def measure_vqa(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean VQA accuracy; 0 for a row without an answer.

    Raises UsageError where no question has enough true answers.
    """
    if all(len(row.true_answers) < MIN_ANSWERS for row in rows):
        raise UsageError(
            f"--metric vqa needs {MIN_ANSWERS} or more true answers per question, and the truth "
            "has fewer",
            hint="--metric exact is for one, and --metric anls for several",
        )
    scores = [
        vqa_accuracy(row.answer, row.true_answers)
        if row.answer is not None and row.true_answers
        else 0.0
        for row in rows
    ]
    return [mean("vqa", scores)]


VQA = Metric("answers", measure_vqa)


def vqa_accuracy(answer: str, truths: Sequence[str]) -> float:
    """The mean of min(matches / 3, 1) over all subsets without one true answer.

    Texts are normalised only if the true answers differ.
    """
    answer, truths = flat(answer), [flat(truth) for truth in truths]
    if len(set(truths)) > 1:
        answer, truths = normalized(answer), [normalized(truth) for truth in truths]
    is_match = [truth == answer for truth in truths]
    matches = sum(is_match)
    scores = (min(1.0, (matches - is_own) / MATCHES_FOR_FULL_SCORE) for is_own in is_match)
    return sum(scores) / len(truths)


def flat(text: str) -> str:
    """The text as one line without surrounding whitespace."""
    return text.replace("\n", " ").replace("\t", " ").strip()


@lru_cache(maxsize=CACHED_ANSWERS)
def normalized(text: str) -> str:
    """The text in lower case without punctuation and articles, with digits for number words."""
    words = (NUMBERS.get(word, word) for word in without_punctuation(text).lower().split())
    return " ".join(SPELLINGS.get(word, word) for word in words if word not in ARTICLES)


def without_punctuation(text: str) -> str:
    """The text with each mark of punctuation removed, or replaced by a blank between letters."""
    has_comma = COMMA_IN_NUMBER.search(text) is not None
    changed = text
    for mark in PUNCTUATION:
        is_outer = has_comma or f"{mark} " in text or f" {mark}" in text
        changed = changed.replace(mark, "" if is_outer else " ")
    return PERIOD.sub("", changed, count=MAX_PERIODS)
