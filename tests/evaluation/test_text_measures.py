"""Measures of texts have the values of their official implementations.

VQA is compared with `vqaEval.py`, tokens with CoreNLP 3.4.1, CIDEr with pycocoevalcap 1.2 on these
tokens, ANLS with the evaluator of DocVQA, and yes and no with the script of POPE.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcli.evaluation.cider import chunk_tokens, chunks_of, cider
from pgcli.evaluation.measures import JoinedRow, estimates, mean, paired_differences, value_of
from pgcli.evaluation.text_metrics import (
    anls,
    is_relaxed_match,
    measure_accuracy,
    measure_exact,
    vqa_accuracy,
    yes_or_no,
)
from pgcli.labels.labelled_image import LabelledImage


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


def test_tokens_equal_the_java_tokenizer():
    """`ptb_captions.tsv` has captions and what CoreNLP 3.4.1 with coco-caption makes of them."""
    lines = Path(__file__).with_name("ptb_captions.tsv").read_text(encoding="utf-8").splitlines()
    pairs = dict(line.split("\t") for line in lines)
    tokens = {
        caption: [token for chunk in chunks_of(caption) for token in chunk_tokens(chunk)]
        for caption in pairs
    }
    assert {caption: " ".join(own) for caption, own in tokens.items()} == pairs


CAPTIONS = {
    "A man riding a horse.": ("A man is riding a brown horse down the street.", "a man on a horse"),
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
    names = [*CAPTIONS]
    assert cider(names, list(CAPTIONS.values()), names) == pytest.approx(CIDER, abs=1e-8)
    assert cider(["a cat"], [["a cat"]], ["1.jpg"]) == [0.0]  # as upstream


def official_cider(captions, references):
    """The scores of pycocoevalcap, of one caption for each image, of words without punctuation."""
    scorer = pytest.importorskip("pycocoevalcap.cider.cider_scorer", reason="a dev dependency")
    official = scorer.CiderScorer()
    for caption, texts in zip(captions, references, strict=True):
        official += (caption, list(texts))
    return official.compute_score()[1].tolist()


words = st.lists(st.sampled_from("a red cat dog sits on the mat".split()), min_size=1, max_size=7)
sentences = words.map(" ".join)
image_captions = st.tuples(sentences, sentences, st.lists(sentences, min_size=1, max_size=3))


@settings(max_examples=30)
@given(st.lists(image_captions, min_size=2, max_size=6))
def test_two_prompts_have_the_cider_of_each_prompt(samples):
    """Rows of two prompts on the same images have the scores of two official evaluations."""
    first, second, references = (list(column) for column in zip(*samples, strict=True))
    images = [*range(len(samples))]
    scores = cider([*first, *second], references * 2, images * 2)
    official = [*official_cider(first, references), *official_cider(second, references)]
    assert scores == pytest.approx(official, abs=1e-8)


def official_anls(answer, truths):
    """The score of a question as the evaluator of DocVQA (rrc.cvc.uab.es) computes it."""
    values = []
    for truth in truths:
        true, predicted = (" ".join(text.strip().lower().split()) for text in (truth, answer))
        length = max(len(truth.upper()), len(answer.upper()))
        values.append(0.0 if length == 0 else slow_levenshtein(true, predicted) / length)
    score = 1 - min(values)
    return 0 if score < 0.5 else score


letters = st.text("aAbß ", max_size=6)


@settings(max_examples=300)
@given(letters, st.lists(letters, min_size=1, max_size=3))
def test_anls_equals_the_official_evaluator(answer, truths):
    row = JoinedRow("", "", {"answer": answer}, LabelledImage(answers=tuple(truths)))
    assert row.best(anls) == official_anls(answer, truths)


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
        JoinedRow(str(n), "", {"answer": answer}, LabelledImage(answers=(truth,)))
        for n, (answer, truth) in enumerate(pairs)
    ]


def values(rows):
    return {one.name: value_of(one, len(rows)) for one in measure_accuracy(rows)}


def test_yes_no_has_the_measures_of_pope():
    """Whatever has no `no` or `not` in its first sentence is a yes, as in POPE's script."""
    pairs = (
        ("yes", "yes"),
        ("Yes ", "no"),
        ("no", "no"),
        ("maybe", "yes"),
        ("No, it is not.", "yes"),
    )
    expected = {"accuracy": 0.6, "precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "valid": 0.6}
    assert values(rows_of(*pairs)) == pytest.approx(expected)
    missing = [*rows_of(*pairs), JoinedRow("x", "", None, LabelledImage(answers=("yes",)))]
    assert values(missing)["recall"] == 0.5
    assert values(missing)["precision"] == pytest.approx(2 / 3)


def official_pope(answer):
    """The answer as POPE's `evaluate.py` (github.com/RUCAIBox/POPE) maps it."""
    if answer.find(".") != -1:
        answer = answer.split(".")[0]
    mapped = answer.replace(",", "").split(" ")
    return "no" if "No" in mapped or "not" in mapped or "no" in mapped else "yes"


@given(
    st.lists(st.sampled_from(["no", "No", "NO", "not", "yes", ".", ",", " ", "now"])).map("".join)
)
def test_answers_are_mapped_as_by_the_script_of_pope(answer):
    assert yes_or_no(answer) == official_pope(answer)


def test_intervals_are_binomial_and_repeatable():
    rows = rows_of(*(("a", "a" if n % 5 else "b") for n in range(1000)))
    (one,) = estimates(measure_exact(rows), np.arange(1000))
    assert one.value == 0.8
    deviation = 1.96 * (0.8 * 0.2 / 1000) ** 0.5
    assert (0.8 - one.low, one.high - 0.8) == pytest.approx((deviation, deviation), rel=0.15)
    assert [one] == estimates(measure_exact(rows), np.arange(1000))


def test_images_are_resampled_with_all_their_rows():
    images = np.arange(1000) // 50
    measure = mean("exact", (images % 2).tolist())
    (by_image,) = estimates([measure], images)
    (by_row,) = estimates([measure], np.arange(1000))
    assert by_image.high - by_image.low > 5 * (by_row.high - by_row.low)


def test_differences_of_paired_resamples_are_narrower():
    random = np.random.default_rng(0)
    first = (random.random(500) < 0.5).astype(float)
    second = np.where(np.arange(500) < 20, 1.0, first)
    pair = [mean("exact", list(scores)) for scores in (first, second)]
    (change,) = paired_differences(pair[:1], pair[1:], np.arange(500))
    assert change.value == pytest.approx(second.mean() - first.mean())
    assert 0 < change.low < change.high < 0.05
