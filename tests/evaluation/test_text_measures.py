"""Measures of texts have the values of their official implementations.

The figures of VQA are those of `vqaEval.py`, tokens those of CoreNLP 3.4.1, and the scores of CIDEr
those of pycocoevalcap 1.2 with these tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcli.evaluation.cider import cider
from pgcli.evaluation.joined_row import JoinedRow, RowTruth
from pgcli.evaluation.measures import RowRatio, differences, estimates, image_numbers
from pgcli.evaluation.ptb_tokenizer import caption_tokens
from pgcli.evaluation.text_measures import accuracy_measures, exact_measures
from pgcli.evaluation.text_similarity import anls, is_relaxed_match, levenshtein
from pgcli.evaluation.vqa import vqa_accuracy


@pytest.mark.parametrize(
    ("answer", "truths", "score"),
    [
        ("yes", {"yes": 10}, 1.0),
        ("Yes", {"yes": 10}, 0.0),  # no normalisation where all agree
        ("yes.", {"yes": 9, "no": 1}, 1.0),
        ("Two", {"2": 3, "two": 2, "3": 5}, 1.0),
        ("a dog", {"dog": 1, "the dog": 1, "dog.": 1, "puppy": 1, "cat": 6}, 0.9),
        ("dont walk", {"don't walk": 2, "stop": 8}, 0.6),
        ("1,000", {"1000": 4, "1,000": 2, "many": 4}, 1.0),
        ("red/blue", {"red and blue": 3, "red blue": 3, "red": 4}, 0.9),
        ("U.S.", {"us": 4, "U.S.": 1, "usa": 5}, 1.0),
        ("none", {"0": 2, "none": 1, "1": 7}, 0.9),
        ("black , white", {"black white": 2, "black, white": 2, "black": 6}, 1.0),
        ("hes yall'd've", {"he's y'all'd've": 3, "x": 7}, 0.9),
        ("\tcat\n", {"cat": 10}, 1.0),
        ("t-shirt", {"t shirt": 2, "t-shirt": 1, "shirt": 7}, 0.9),
    ],
)
def test_vqa_accuracy_is_the_official_one(answer, truths, score):
    every = [truth for truth, times in truths.items() for _ in range(times)]
    assert vqa_accuracy(answer, every) == pytest.approx(score)


def test_tokens_are_those_of_the_java_tokenizer():
    """`ptb_captions.tsv` has captions and what CoreNLP 3.4.1 with coco-caption makes of them."""
    lines = Path(__file__).with_name("ptb_captions.tsv").read_text(encoding="utf-8").splitlines()
    pairs = dict(line.split("\t") for line in lines)
    assert {caption: " ".join(caption_tokens(caption)) for caption in pairs} == pairs


CAPTIONS = {
    "A man riding a horse.": (
        "A man is riding a brown horse down the street.",
        "a man on a horse",
    ),
    "two dogs (one brown) on the grass": (
        "Two dogs (a brown one) play on grass",
        "two dogs run on the grass.",
    ),
    'A close-up of a T-shirt that says "STOP"!': (
        'a T-shirt which says "STOP"',
        "close up of a shirt that says stop!",
    ),
    "a woman's red/blue umbrella & it's raining": (
        "A woman's umbrella is red/blue; it's raining.",
        "a woman with an umbrella & rain",
    ),
    "Mr. Smith can't find 3.5 oz. of cheese...": (
        "Mr. Smith cannot find 3.5 oz. of cheese.",
        "a man looks for cheese",
    ),
    "a black-and-white photo of N.Y. in the 1970's": (
        "black-and-white photo of N.Y. in the 1970's",
        "old photo of a city",
    ),
    "a cat sits on a mat": ("a dog sleeps on a bed", "the dog lies on the bed"),
}
CIDER = [2.303700074, 2.96797744, 2.544226872, 2.977677166, 2.867646678, 5.123648092, 0.262387921]


def test_cider_is_the_official_one():
    assert cider(list(CAPTIONS), list(CAPTIONS.values())) == pytest.approx(CIDER, abs=1e-8)
    assert cider(["a cat"], [["a cat"]]) == [0.0]  # as upstream


def test_anls_is_0_from_half_of_the_text_on():
    assert anls("Hello  World", "hello world") == 1.0
    assert anls("hello", "hallo") == pytest.approx(0.8)
    assert anls("ab", "ac") == 0.0
    assert anls("", "") == 1.0
    assert anls("", "a") == 0.0


def slow_levenshtein(one, other):
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        line = [row]
        for column, against in enumerate(other, 1):
            line.append(
                min(above[column] + 1, line[-1] + 1, above[column - 1] + (letter != against))
            )
        above = line
    return above[-1]


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_levenshtein_equals_the_table_of_distances(one, other):
    assert levenshtein(one, other) == slow_levenshtein(one, other)


@pytest.mark.parametrize(
    ("answer", "truth", "score"),
    [
        ("105", "100", 1),
        ("94.9", "100", 0),
        ("5.2%", "5%", 1),
        ("0.05", "5%", 1),
        ("0", "0", 1),
        ("0.0", "0", 0),  # a true 0 is compared as text
        ("Yes", "yes", 1),
        ("2,000", "2000", 0),
    ],
)
def test_relaxed_accuracy_allows_5_percent_of_numbers(answer, truth, score):
    assert is_relaxed_match(answer, truth) == score


def rows_of(*pairs):
    return [
        JoinedRow(str(n), "", {"answer": answer}, RowTruth((truth,)))
        for n, (answer, truth) in enumerate(pairs)
    ]


def values(measures):
    count = measures[0].rows
    return {one.name: one.values(np.ones((1, count)), np.arange(count))[0] for one in measures}


def test_yes_no_has_the_measures_of_pope():
    pairs = ("yes", "yes"), ("Yes ", "no"), ("no", "no"), ("maybe", "yes"), ("no", "yes")
    found = values(accuracy_measures(rows_of(*pairs)))
    expected = {"accuracy": 0.4, "precision": 0.5, "recall": 1 / 3, "f1": 0.4, "valid": 0.8}
    assert found == pytest.approx(expected)


def test_intervals_are_those_of_the_binomial_distribution_and_repeatable():
    rows = rows_of(*(("a", "a" if n % 5 else "b") for n in range(1000)))
    (one,) = estimates(exact_measures(rows), np.arange(1000), 1000)
    assert one.value == 0.8
    deviation = 1.96 * (0.8 * 0.2 / 1000) ** 0.5
    assert (0.8 - one.low, one.high - 0.8) == pytest.approx((deviation, deviation), rel=0.15)
    assert [one] == estimates(exact_measures(rows), np.arange(1000), 1000)


def test_images_are_resampled_with_all_their_rows():
    ids = [number // 50 for number in range(1000)]
    image_N, images = image_numbers(ids)
    measure = RowRatio.mean("exact", [float(one % 2) for one in ids])
    (by_image,) = estimates([measure], image_N, images)
    (by_row,) = estimates([measure], np.arange(1000), 1000)
    assert by_image.high - by_image.low > 5 * (by_row.high - by_row.low)


def test_differences_of_paired_resamples_are_narrower():
    random = np.random.default_rng(0)
    first = (random.random(500) < 0.5).astype(float)
    second = np.where(np.arange(500) < 20, 1.0, first)
    one, other = (RowRatio.mean("exact", list(values)) for values in (first, second))
    (found,) = differences([one], [other], np.arange(500), 500)
    assert found.value == pytest.approx(second.mean() - first.mean())
    assert 0 < found.low < found.high < 0.05


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab")), min_size=1, max_size=9))
def test_intervals_contain_the_value(pairs):
    (one,) = estimates(exact_measures(rows_of(*pairs)), np.arange(len(pairs)), len(pairs))
    assert one.low <= one.value + 1e-12
    assert one.value <= one.high + 1e-12
