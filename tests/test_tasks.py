"""The prompt each task makes."""

import datetime
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgcli.errors import UsageError
from pgcli.records import COLUMNS, Fault, Item
from pgcli.tasks import (
    ask,
    caption,
    detect,
    embed,
    ocr,
    segment,
    template_columns,
    with_prompts,
)


def prompts(question, **fields):
    (item,) = with_prompts([Item(0, "a.png", "a.png", fields=fields)], question)
    return item.prompts


def test_each_task_has_its_token_limit():
    questions = (caption(), ask(["what?"]), detect(["cat"]), segment(["cat"]), ocr())
    tasks = ["caption", "ask", "detect", "segment", "ocr"]
    assert [question.task for question in questions] == tasks
    assert [question.max_new_tokens for question in questions] == [128, 64, 256, 512, 512]
    assert caption(max_new_tokens=7).max_new_tokens == 7


#: What the values of a row make of a question.
PROMPTS = [
    (caption(), {}, ("caption en",)),
    (caption("pt-BR"), {}, ("caption pt-BR",)),
    (detect([" cat ", "red car"]), {}, ("detect cat ; red car",)),
    (detect(["{cat}", "{{"]), {}, ("detect {cat} ; {{",)),
    (segment([" cat ", "red car"]), {}, ("segment cat ; red car",)),
    (ocr(), {}, ("ocr",)),
    (ask(["b", "a"]), {}, ("b", "a")),
    (ask([" \n what\nis  this? \n"]), {}, ("what\nis  this?",)),
    (ask([""]), {}, ("",)),
    (ask(["what \udcff?"]), {}, ("what \ufffd?",)),
    (
        ask(["is it {colour}?", "{colour} or {_2}, {größe}?"]),
        {"colour": "red", "_2": "blue", "größe": "big", "other": "never"},
        ("is it red?", "red or blue, big?"),
    ),
    (ask(["a {a-b} of {price in €}?"]), {"a-b": "mug", "price in €": 3}, ("a mug of 3?",)),
    (ask(["{{a}}"]), {"a": 1}, ("{a}",)),
    (ask(["{{{a}}}"]), {"a": 1}, ("{1}",)),
    (ask(["{} { {{0}} {{a.b}}"]), {"a": 1}, ("{} { {0} {a.b}",)),
    (ask(["a } b }} c"]), {"a": 1}, ("a } b } c",)),
    (ask(["%s %(a)s $a"]), {"a": 1}, ("%s %(a)s $a",)),
    (ask(["{a} {b}"]), {"a": "{b}", "b": "{{x}}"}, ("{b} {{x}}",)),
    (ask(["{a}"]), {"a": "<loc0001><image>"}, ("<loc0001><image>",)),
    (ask(["{a}", "{b}"]), {"a": "same", "b": " same "}, ("same",)),
]
VALUES = [("red", "red"), (3, "3"), (2.5, "2.5"), (True, "True"), (None, "")]
VALUES += [(datetime.date(2024, 2, 29), "2024-02-29")]
PROMPTS += [(ask(["x {a} y"]), {"a": value}, (f"x {words} y",)) for value, words in VALUES]


@pytest.mark.parametrize(("question", "fields", "made"), PROMPTS, ids=map(str, range(len(PROMPTS))))
def test_prompts_are_made_of_a_question_and_a_row(question, fields, made):
    assert prompts(question, **fields) == made


def test_columns_of_a_question_are_those_in_braces():
    assert template_columns(ask(["{colour}, {_2}, {größe}?"])) == ("colour", "_2", "größe")
    assert template_columns(detect(["{cat}", "{{"])) == template_columns(ask(None)) == ()


def test_columns_depend_on_the_question():
    assert segment(["cat"]).columns == (*COLUMNS, "masks")
    assert ask(["cat?"], choices=["yes", "no"]).columns == (*COLUMNS, "choices")
    assert ask(None, choices_column="options").columns == (*COLUMNS, "choices")
    assert detect(["cat"]).columns == ask(["cat?"]).columns == COLUMNS


def test_question_has_its_objects():
    assert detect([" cat ", "red car"], strict=True).objects == ("cat", "red car")
    assert detect(["cat"], strict=True).strict
    assert not detect(["cat"]).strict


def test_choices_come_from_the_question_or_from_each_item():
    (item,) = with_prompts([Item(0, "a", "a")], ask(["cat?"], choices=[" yes ", "no"]))
    assert item.choices == ("yes", "no")
    items = [Item(0, "a", "a", choices=("x ", "y")), Item(1, "b", "b", choices=("p", "q", "r"))]
    prepared = with_prompts(items, ask(["which?"], choices_column="options"))
    assert [item.choices for item in prepared] == [("x", "y"), ("p", "q", "r")]


#: What is refused, and what the message has.
REFUSED = [
    *((lambda some=some: ask(["cat?"], choices=some), ".") for some in (["yes"], ["yes", ""])),
    *(
        (lambda some=some: ask(["cat?"], choices=some), "")
        for some in (["a", "b", " a"], ["", " "])
    ),
    (
        lambda: ask(["cat?"], choices=["a", "b"], choices_column="c"),
        "--choices-column exclude each other",
    ),
    *(
        (lambda lang=lang: caption(lang), "language tag")
        for lang in ("", "e", "english language", "en\n", "en; detect cat", "{a}")
    ),
    *(
        (lambda objects=objects: detect(objects), ".")
        for objects in ([], [""], ["cat", "  "], ["cat ; dog"], ["cat\ndog"], ["a\rb"])
    ),
    (lambda: ask(["what?", " what?\n"]), "twice"),
    (lambda: ask([]), "no prompt"),
    *(
        (lambda name=name: prompts(ask([f"{{{name}}}"]), a=1), re.escape(name))
        for name in ("__class__", "0", "a.b", "a[0]", "a!r", "a:>9", " a ", "b-c")
    ),
    *(
        (lambda value=value: prompts(ask(["{a}"]), a=value), r"'a' of a\.png")
        for value in (["a"], {"b": 1}, b"raw")
    ),
    (lambda: prompts(ask(["{size}"]), colour="red"), "'size'"),
    (lambda: prompts(ask(None)), r"a\.png has no prompt"),
]


@pytest.mark.parametrize(("made", "message"), REFUSED, ids=map(str, range(len(REFUSED))))
def test_question_that_makes_no_prompt_is_rejected(made, message):
    with pytest.raises(UsageError, match=message):
        made()


def test_unknown_column_is_rejected_with_the_existing_columns():
    with pytest.raises(UsageError) as refused:
        prompts(ask(["{size}"]), colour="red", shape="dot")
    assert "colour, shape" in refused.value.hint


@pytest.mark.parametrize("text", ["", "  ", "\n", "\u00a0"])
def test_empty_prompt_is_an_error_of_its_item(text):
    own, filled = Item(0, "a", "a", prompts=(text,)), Item(1, "b", "b", fields={"txt": text})
    expected = Fault("no_prompt", "The prompt is empty.")
    asked = [(own, ask(None)), (filled, ask(["{txt}"])), (filled, ask(["x", "{txt}"]))]
    for item, question in asked:
        assert [found.fault for found in with_prompts([item], question)] == [expected]
    missing = Fault("missing", "")
    assert next(with_prompts([replace(own, fault=missing)], ask(None))).fault == missing
    images = with_prompts([Item(0, "a", "a")], embed())
    assert [item.fault for item in images] == [None]


def test_without_prompts_each_item_has_its_own():
    items = [Item(0, "a", "a", prompts=(" what {x}? \n",)), Item(1, "b", "b", prompts=("y",))]
    assert [item.prompts for item in with_prompts(items, ask(None))] == [("what {x}?",), ("y",)]
    assert template_columns(ask(None)) == ()


@given(st.text(), st.text())
def test_every_template_and_value_give_an_encodable_prompt(template, value):
    question = ask([template])
    item = Item(0, "a", "a", fields=dict.fromkeys(template_columns(question), value))
    (filled,) = with_prompts([item], question)
    assert filled.prompts[0] == filled.prompts[0].strip()
    filled.prompts[0].encode()


@given(st.text().filter(lambda name: name.strip() and not set(",;\n\r") & set(name)))
@example("a {kind} of cat")
def test_object_names_are_in_the_prompt_unchanged(name):
    assert prompts(detect([name])) == (f"detect {name.strip()}",)
