"""Metrics of texts: equality, relaxed accuracy, ANLS, VQA accuracy, yes and no, and labels.

VQA accuracy has the numbers of the data set's `vqaEval.py`, yes and no those of POPE's script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pgcli.errors import UsageError
from pgcli.evaluation.measures import YES_NO, JoinedRow, Measure, Metric, is_yes_no, mean, ratio

MAX_RELATIVE_ERROR = 0.05
MIN_SIMILARITY = 0.5  # lower ones count as 0; DocVQA's evaluator keeps 0.5 itself


def measure_exact(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose answer equals a true one, ignoring surrounding whitespace."""
    return [mean("exact", [row.best(is_exact) for row in rows])]


def measure_relaxed(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The share of rows whose answer equals a true one, or is a number close to it (ChartQA)."""
    return [mean("relaxed", [row.best(is_relaxed_match) for row in rows])]


def measure_anls(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The average normalised Levenshtein similarity, as DocVQA's evaluator computes it."""
    return [mean("anls", [row.best(anls) for row in rows])]


EXACT = Metric("answers", measure_exact)
RELAXED = Metric("answers", measure_relaxed)
ANLS = Metric("answers", measure_anls)


def is_exact(answer: str, truth: str) -> float:
    """1 if both texts are equal, ignoring surrounding whitespace, else 0."""
    return float(answer.strip() == truth.strip())


def is_relaxed_match(answer: str, truth: str) -> float:
    """1 if both texts are equal, ignoring case, or are numbers within 5 percent, else 0.

    As in ChartQA, a percentage is a hundredth of its number, and a true 0 is compared as text.
    """
    answer, truth = answer.strip(), truth.strip()
    value, target = stated_number(answer), stated_number(truth)
    if value is not None and target:
        return float(abs(value - target) / abs(target) <= MAX_RELATIVE_ERROR)
    return float(answer.lower() == truth.lower())


def stated_number(text: str) -> float | None:
    """The number or percentage in a text; None for any other text."""
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def anls(answer: str, truth: str) -> float:
    """1 minus the edit distance divided by the length of the longer text; 0 below 0.5.

    Case and repeated whitespace are ignored, except in the length of the longer text.
    """
    longest = max(len(answer.upper()), len(truth.upper()))
    if not longest:
        return 1.0
    plain = [" ".join(text.strip().lower().split()) for text in (answer, truth)]
    similarity = 1 - levenshtein(*plain) / longest
    return similarity if similarity >= MIN_SIMILARITY else 0.0


def levenshtein(first: str, second: str) -> int:
    """The number of insertions, deletions and substitutions that turn one text into the other.

    Myers' algorithm (1999): the bits of two integers say where the distance grows and where it
    falls from each row of the table's column to the next.
    """
    if not first:
        return len(second)
    bits: dict[str, int] = {}
    for index, letter in enumerate(first):
        bits[letter] = bits.get(letter, 0) | 1 << index
    every, last, distance = (1 << len(first)) - 1, 1 << (len(first) - 1), len(first)
    grows, falls = every, 0
    for letter in second:
        equal = bits.get(letter, 0)
        diagonal = (((equal & grows) + grows) ^ grows) | equal | falls
        grows_right = falls | ~(diagonal | grows) & every
        falls_right = grows & diagonal
        distance += bool(grows_right & last) - bool(falls_right & last)
        grows_right = (grows_right << 1 | 1) & every
        falls_right = falls_right << 1 & every
        grows = falls_right | ~((equal | falls) | grows_right) & every
        falls = grows_right & (equal | falls)
    return distance


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


TOP = 5  # labels of a classifier


def measure_accuracy(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The measures of yes and no if all true answers are yes or no, else of labels."""
    return yes_no_measures(rows) if is_yes_no(rows) else label_measures(rows)


ACCURACY = Metric("answers", measure_accuracy)


def yes_no_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """Accuracy, precision, recall and F1 of `yes`, and the share of answers that are yes or no.

    Missing and failed rows count as wrong.
    """
    answers = [row.answer for row in rows]
    says = np.array(["" if answer is None else yes_or_no(answer) for answer in answers])
    true = np.array([truth.strip().lower() for row in rows for truth in row.true_answers or ("",)])
    says_yes, is_yes = says == "yes", true == "yes"
    both = says_yes & is_yes
    valid = [answer is not None and answer.strip().lower() in YES_NO for answer in answers]
    return [
        mean("accuracy", ((says == true) & (true != "")).tolist()),
        ratio("precision", both, says_yes),
        ratio("recall", both, is_yes),
        ratio("f1", 2 * both, says_yes.astype(float) + is_yes),
        mean("valid", valid),
    ]


def yes_or_no(answer: str) -> str:
    """POPE's reading of an answer: `no` if its first sentence has a no or not, else `yes`."""
    words = answer.partition(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"}.intersection(words) else "yes"


def label_measures(rows: Sequence[JoinedRow]) -> list[Measure]:
    """Top-1 accuracy, and top-5 accuracy if rows have at least five labels."""
    truths = [{truth.strip() for truth in row.true_answers} for row in rows]
    labels = [labels_of(row) for row in rows]
    pairs = [*zip(rows, truths, strict=True)]
    first = [row.answer is not None and row.answer.strip() in truth for row, truth in pairs]
    accuracy: list[Measure] = [mean("accuracy", first)]
    if all(len(names) < TOP for names in labels):
        return accuracy
    top = [bool(truth.intersection(n[:TOP])) for n, truth in zip(labels, truths, strict=True)]
    return [*accuracy, mean(f"accuracy@{TOP}", top)]


def labels_of(row: JoinedRow) -> list[str]:
    """The labels of a classified row, best first."""
    labels = (row.row or {}).get("labels")
    if not isinstance(labels, list):
        return []
    return [str(label.get("label")).strip() for label in labels if isinstance(label, dict)]
