"""The prompt each task makes."""

import datetime
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.errors import UsageError
from pgcli.records import Item
from pgcli.tasks import (
    ask,
    caption,
    detect,
    ocr,
    segment,
    template_columns,
    with_prompts,
    with_region,
)


def prompts(question, **fields):
    (item,) = with_prompts([Item(0, "a.png", "a.png", fields=fields)], question)
    return item.prompts


def test_each_task_has_its_prompt_and_token_limit():
    assert prompts(caption()) == ("caption en",)
    assert prompts(caption("pt-BR")) == ("caption pt-BR",)
    assert prompts(detect([" cat ", "red car"])) == ("detect cat ; red car",)
    assert prompts(segment([" cat ", "red car"])) == ("segment cat ; red car",)
    assert prompts(ocr()) == ("ocr",)
    questions = (caption(), ask(["what?"]), detect(["cat"]), segment(["cat"]), ocr())
    tasks = ["caption", "ask", "detect", "segment", "ocr"]
    assert [question.task for question in questions] == tasks
    assert [question.max_new_tokens for question in questions] == [128, 64, 256, 512, 512]


def test_extra_columns_of_questions():
    assert segment(["cat"]).extra_columns == ("masks",)
    assert ask(["cat?"], choices=["yes", "no"]).extra_columns == ("choices",)
    assert ask(None, choices_column="options").extra_columns == ("choices",)
    assert detect(["cat"]).extra_columns == ask(["cat?"]).extra_columns == ()


def test_question_has_its_objects():
    assert detect([" cat ", "red car"], strict=True).objects == ("cat", "red car")
    assert detect(["cat"], strict=True).strict
    assert not detect(["cat"]).strict


def test_choices_go_to_every_item_stripped():
    (item,) = with_prompts([Item(0, "a", "a")], ask(["cat?"], choices=[" yes ", "no"]))
    assert item.choices == ("yes", "no")


def test_items_may_have_their_own_choices():
    items = [Item(0, "a", "a", choices=("x ", "y")), Item(1, "b", "b", choices=("p", "q", "r"))]
    prepared = with_prompts(items, ask(["which?"], choices_column="options"))
    assert [item.choices for item in prepared] == [("x", "y"), ("p", "q", "r")]


@pytest.mark.parametrize("choices", [["yes"], ["yes", ""], ["yes", "no", " yes"], ["", "  "]])
def test_too_few_or_repeated_choices_are_refused(choices):
    with pytest.raises(UsageError):
        ask(["cat?"], choices=choices)


@pytest.mark.parametrize("choices", ["yes", [1, 2], [None, "a"], "yes|no"])
def test_choices_must_be_a_list_of_texts(choices):
    with pytest.raises(UsageError, match="not a list of choices") as refused:
        ask(["cat?"], choices=choices)
    assert "choices=[" in refused.value.hint


@pytest.mark.parametrize(
    ("region", "problem"),
    [
        ((1, 2, 300), "four"),
        ("1,2,3", "four"),
        ((math.nan, 2, 3, 4), "finite"),
        ([5, 1, 5, 9], "empty"),
    ],
)
def test_invalid_region_is_refused(region, problem):
    with pytest.raises(UsageError, match=problem):
        with_region(caption(), region)


def test_question_may_have_a_region():
    assert with_region(caption(), "-1, 2.5,30,40").region == (-1, 2.5, 30, 40)
    assert with_region(caption(), None).region is None


def test_choices_and_a_choices_column_are_exclusive():
    with pytest.raises(UsageError, match="a column of them is named"):
        ask(["cat?"], choices=["yes", "no"], choices_column="options")


def test_max_new_tokens_can_be_given():
    assert caption(max_new_tokens=7).max_new_tokens == 7
    with pytest.raises(UsageError, match="0 tokens"):
        ocr(max_new_tokens=0)


@pytest.mark.parametrize("lang", ["", "e", "english language", "en\n", "en; detect cat", "{a}"])
def test_invalid_language_tag_is_refused(lang):
    with pytest.raises(UsageError, match="language tag"):
        caption(lang)


@pytest.mark.parametrize(
    "objects", [[], [""], ["cat", "  "], ["cat ; dog"], ["cat\ndog"], ["a\rb"]]
)
def test_invalid_object_name_is_refused(objects):
    with pytest.raises(UsageError):
        detect(objects)


def test_braces_in_an_object_are_literal():
    question = detect(["{cat}", "{{"])
    assert template_columns(question) == ()
    assert prompts(question) == ("detect {cat} ; {{",)


def test_item_has_every_prompt_in_order():
    assert prompts(ask(["b", "a"])) == ("b", "a")


def test_prompts_are_stripped_at_both_ends():
    assert prompts(ask([" \n what\nis  this? \n"])) == ("what\nis  this?",)
    assert prompts(ask([""])) == ("",)


def test_repeated_prompt_is_refused():
    with pytest.raises(UsageError, match="twice"):
        ask(["what?", " what?\n"])


def test_empty_list_of_prompts_is_refused():
    with pytest.raises(UsageError, match="no prompt"):
        ask([])


def test_columns_are_filled_from_the_row():
    question = ask(["is it {colour}?", "{colour} or {_2}, {größe}?"])
    assert template_columns(question) == ("colour", "_2", "größe")
    made = prompts(question, colour="red", _2="blue", größe="big", other="never")
    assert made == ("is it red?", "red or blue, big?")


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("{{a}}", "{a}"),
        ("{{{a}}}", "{1}"),
        ("{} { {{0}} {{a.b}}", "{} { {0} {a.b}"),
        ("a } b }} c", "a } b } c"),
        ("%s %(a)s $a", "%s %(a)s $a"),
    ],
)
def test_only_a_name_in_braces_is_a_column(template, made):
    assert prompts(ask([template]), a=1) == (made,)


def test_braces_in_a_value_are_literal():
    assert prompts(ask(["{a} {b}"]), a="{b}", b="{{x}}") == ("{b} {{x}}",)
    assert prompts(ask(["{a}"]), a="<loc0001><image>") == ("<loc0001><image>",)


@pytest.mark.parametrize("name", ["__class__", "0", "a.b", "a[0]", "a!r", "a:>9", " a ", "b-c"])
def test_braces_hold_a_column_or_are_refused(name):
    with pytest.raises(UsageError, match=re.escape(name)):
        prompts(ask([f"{{{name}}}"]), a=1)
    assert template_columns(ask([f"is it {{{name}}}?"])) == (name,)


def test_a_column_of_any_name_fills_the_prompt():
    question = ask(["is there a {product-name} of {price in €}?"])
    item = Item(0, "a", "a", fields={"product-name": "mug", "price in €": 3})
    (filled,) = with_prompts([item], question)
    assert filled.prompts == ("is there a mug of 3?",)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("red", "red"),
        (3, "3"),
        (2.5, "2.5"),
        (True, "True"),
        (None, ""),
        (datetime.date(2024, 2, 29), "2024-02-29"),
    ],
)
def test_text_and_numbers_are_formatted(value, words):
    assert prompts(ask(["x {a} y"]), a=value) == (f"x {words} y",)


@pytest.mark.parametrize("value", [["a"], {"b": 1}, b"raw"])
def test_other_values_are_refused_by_column_and_item(value):
    with pytest.raises(UsageError, match=r"'a' of a\.png"):
        prompts(ask(["{a}"]), a=value)


def test_unknown_column_is_refused_with_the_existing_ones():
    with pytest.raises(UsageError, match="'size'") as refused:
        prompts(ask(["{size}"]), colour="red", shape="dot")
    assert "colour, shape" in refused.value.hint


def test_equal_prompts_of_a_row_are_merged():
    assert prompts(ask(["{a}", "{b}"]), a="same", b=" same ") == ("same",)


def test_without_prompts_each_item_has_its_own():
    items = [Item(0, "a", "a", prompts=(" what {x}? \n",)), Item(1, "b", "b", prompts=("",))]
    assert [item.prompts for item in with_prompts(items, ask(None))] == [("what {x}?",), ("",)]
    assert template_columns(ask(None)) == ()


def test_item_without_a_required_prompt_is_refused():
    with pytest.raises(UsageError, match=r"a\.png has no prompt"):
        prompts(ask(None))


def test_a_lone_surrogate_does_not_reach_the_tokenizer():
    assert prompts(ask(["what \udcff?"])) == ("what \ufffd?",)


@given(st.text(), st.text())
def test_every_template_and_value_give_an_encodable_prompt(template, value):
    question = ask([template])
    item = Item(0, "a", "a", fields=dict.fromkeys(template_columns(question), value))
    (filled,) = with_prompts([item], question)
    assert filled.prompts[0] == filled.prompts[0].strip()
    filled.prompts[0].encode()


@given(st.text().filter(lambda name: name.strip() and not set(",;\n\r") & set(name)))
def test_object_names_are_in_the_prompt_unchanged(name):
    assert prompts(detect([name])) == (f"detect {name.strip()}",)
