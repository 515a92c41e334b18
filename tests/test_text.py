"""Foreign text is printable: control characters are escaped."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.text import encodable, listed, printable

any_text = st.text(st.characters())  # lone surrogates included


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain, ü, 猫, 🐈", "plain, ü, 猫, 🐈"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\x7f\x9b31m", r"\x7f\x9b31m"),
        ("gpj.\u202ecod", r"gpj.\u202ecod"),
        (
            "\u2028\u2029\u2066\u2069\u200e\u200f\u061c",
            r"\u2028\u2029\u2066\u2069\u200e\u200f\u061c",
        ),
        ("\udcff", r"\udcff"),
        ("a\u200bb\ufeffc\u2060d\u00ade", r"a\u200bb\ufeffc\u2060d\xade"),
        ("x\U000e0041\U000e007f", r"x\U000e0041\U000e007f"),
        ("ad\u200dmin \u200c", r"ad\u200dmin \u200c"),
        ("\U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u062e",) * 2,  # a family; Persian
        ("[bold]x[/bold] :cat: %s {a} C:\\new", "[bold]x[/bold] :cat: %s {a} C:\\new"),
    ],
)
def test_control_and_invisible_characters_are_escaped(raw, shown):
    assert printable(raw) == shown


@given(any_text)
def test_printable_text_is_one_line_without_controls(text):
    shown = printable(text)
    shown.encode()
    assert not any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in shown)
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown


@given(any_text)
def test_encodable_text_differs_only_in_lone_surrogates(text):
    fit = encodable(text)
    fit.encode()
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert fit == text


def test_each_lone_surrogate_is_replaced():
    assert encodable("a\udcffb\ud800") == "a\ufffdb\ufffd"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a", "b c"], "a, b c"),
        (["a,b", "c"], "'a,b', 'c'"),
        (["a", " "], "'a', ' '"),
        (["a"] * 7, "a, a, a, a, a and 2 more"),
    ],
)
def test_names_with_commas_and_blank_names_are_quoted(names, shown):
    assert listed(names) == shown
