"""The tokens of captions as Stanford's PTBTokenizer makes them for CIDEr, without Java.

Written to the output of CoreNLP 3.4.1 with `-lowerCase`, the version of coco-caption. Addresses,
telephone numbers, faces and rare abbreviations, which captions do not have, may differ.
"""

from __future__ import annotations

import re

#: Removed from the tokens by coco-caption. Its names of brackets are in upper case and match no
#: token, so brackets stay.
REMOVED = frozenset("\" '' ' `` ` . ? ! , : ... .. ;".split())
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
#: Characters that the tokenizer replaces.
REPLACED = str.maketrans(
    dict.fromkeys("‘’‹›", "'")
    | dict.fromkeys("“”«»", " '' ")
    | dict.fromkeys("–—―", " -- ")
    | {"…": " ... ", "\u00a0": " ", "£": " # ", "€": " $ ", "½": " 1/2 "}
)
#: Words that keep a period behind them.
ABBREVIATIONS = (
    "ave co corp dept dr etc ft gov inc jr lt ltd mr mrs ms mt prof sgt sr st vs".split()
)
NUMBER = r"(?:[-+]?\d*(?:[.,:]\d+)+|[-+]\d+)"
WORD = r"[^\W_]+(?:(?:[-_&]|[\u0300-\u036f]+)[^\W_]+)*[\u0300-\u036f]*"
TOKEN = re.compile(
    rf"""
    (?:can(?=not\b)) | (?:(?:gon|wan)(?=na\b)) | (?:(?:got)(?=ta\b)) | (?:(?:gim|lem)(?=me\b))
  | 't(?=(?:is|was)\b) | y'(?=all\b) | [^\W\d_]+?(?=n['`]t\b) | n['`]t\b
  | '(?:s|m|d|re|ve|ll|em|n)\b(?:(?<='n)')?
  | (?:o'clock|ma'am)\b | [a-hj-xz]'(?!re\b|ve\b|ll\b)[^\W\d_]{{2,}}
  | (?:[^\W_]+-)?(?:[^\W\d_]\.)+[^\W\d_]\.(?![^\W_])(?:-(?:(?:[^\W\d_]\.){{2,}}|[^\W_]+))*
  | [^\W\d_]\.(?:(?:-[^\W_]+)+|(?![^\W\d_]))
  | (?:{"|".join(ABBREVIATIONS)})\.(?:(?:-[^\W_]+)+|(?![^\W\d_]))
  | [^\W\d_][^\W_]*\.(?=[,;:])                                                  # as in etc.,
  | [^\W_]+(?:-[^\W\d_]+){{0,2}}(?:\\?/[^\W_]+(?:-[^\W\d_]+){{0,2}}){{1,2}}(?![\w/])
  | \d+-\d+/\d+ | \d+/\d+ | \d+(?:[.,]\d+)+(?:-[^\W_]+)+ | {NUMBER} | (?<![^\W_])'\d\ds?
  | [^\W\d_][^\W_]*(?:[.!?][^\W\d_][^\W_]*)+ | {WORD}
  | [!?]+ | \.{{3}} | \.{{2}} | -+ | '' | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)


def chunks_of(caption: str) -> list[str]:
    """The parts of a caption that are tokenised separately: whitespace is around them."""
    # no character of REPLACED is in ASCII
    return (caption if caption.isascii() else caption.translate(REPLACED)).split()


def chunk_tokens(chunk: str) -> list[str]:
    """The tokens of text without whitespace, in lower case and without punctuation."""
    tokens = [BRACKETS.get(token, token).lower() for token in TOKEN.findall(chunk)]
    return [token for token in tokens if token not in REMOVED and token.strip("-")]
