"""The tokens of captions as Stanford's PTBTokenizer makes them for CIDEr, without Java.

Written to the output of CoreNLP 3.4.1 with `-lowerCase`, the version of coco-caption.
"""

from __future__ import annotations

import re

#: Removed from the tokens by coco-caption. Its names of brackets are in upper case and match no
#: token, so brackets stay.
REMOVED = frozenset("\" '' ' `` ` . ? ! , : ... .. ;".split())
RENAMED = {
    "&amp;": "&", ":)": ":-rrb-", ";)": ";-rrb-", ":-)": ":--rrb-", ";-)": ";--rrb-",
    ":(": ":-lrb-", ":-(": ":--lrb-",
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
}  # fmt: skip
#: Characters that the tokenizer replaces.
REPLACED = str.maketrans(
    {"‘": "'", "’": "'", "“": " '' ", "”": " '' ", "–": " -- ", "—": " -- ", "…": " ... "}
    | {"£": " # ", "€": " $ ", "\u00a0": " ", "\u00ad": ""}
    | dict.fromkeys(map(chr, range(0x1F300, 0x1FB00)), " ")  # emoji, which it drops
)
#: Words that keep a period behind them.
ABBREVIATIONS = """
cf dr ft lt mr ms mt ph st vs wm adj adm adv ave cie col cpl det drs ens gen gov hon jos maj mfg mme
mrs mtg pfc pvt rep rev sen sfc sgt spc ste alex asst atty brig capt cmdr dept elec govs insp invt
mlle msgr natl pres prof reps sens supt lieut assoc messrs attys profs al co ct ga jr ky md mo rd rt
sq sr va vt ala apr aug bhd cos dak dec esq est etc ext feb fla fri inc ind jan jul jun kan ltd mar
mon neb nev nov oct plc pte pty sep seq sys tel thu tue wed wis wyo ariz assn bldg blvd bros colo
conn corp intl kans mich minn mont okla penn ppte ppty ptes ptys sept tenn tues univ wisc calif
thurs
""".split()
#: Those that keep it where they are capitalised, and before a number.
CAPITALISED = "Az La Pa Ark Del Ill Ore Tex Mass Miss Wash".split()
BEFORE_NUMBERS = "ca no op pp art fig nos figs prop".split()

NUMBER = r"(?:[-+]?\d*(?:[.,:]\d+)+|[-+]\d+)(?![^\W_])"
WORD = r"[^\W_]+(?:[-_.&][^\W_]+)*"
TOKEN = re.compile(
    rf"""
    https?://[^\s"<>()]*[^\s"<>().,;:!?] | [\w.+-]+@[\w-]+(?:\.[\w-]+)+         # addresses
  | <[A-Za-z/!?][^>\s]*>
  | [@\#][A-Za-z_]\w*
  | (?:can(?=not\b)) | (?:(?:gon|wan)(?=na\b)) | (?:(?:got)(?=ta\b)) | (?:(?:gim|lem)(?=me\b))
  | 't(?=(?:is|was)\b) | more(?='n\b) | y'(?=all\b)
  | [^\W\d_]+?(?=n['`]t\b) | n['`]t\b
  | '(?:s|m|d|re|ve|ll|em|n)\b(?:(?<='n)')?
  | (?:o'clock|ma'am|d'ye)\b | [a-hj-xz]'(?!re\b|ve\b|ll\b)[^\W\d_]{{2,}}
  | (?:[^\W\d_]\.)+[^\W\d_]\.(?:-[^\W_]+)* | [^\W\d_]\.(?=\s|$)
  | (?:{"|".join(ABBREVIATIONS)})\.(?![^\W\d_])
  | (?-i:{"|".join(CAPITALISED)})\.(?![^\W\d_])
  | (?:{"|".join(BEFORE_NUMBERS)})\.(?=\s?\d)
  | [^\W_]+(?:-[^\W\d_]+){{0,2}}(?:/[^\W_]+(?:-[^\W\d_]+){{0,2}}){{1,2}}(?![\w/])
  | \d+-\d+/\d+ | \d+/\d+
  | {NUMBER}
  | (?:us|hk|nz|au|nt|ca|a|c)\$ | [^\W\d_]\+\+ | (?<![^\W_])'\d\ds? | ol' | &amp; | [:;]-?[()]
  | {WORD}
  | [!?]+ | \.{{3}} | \.{{2}} | -+ | '' | '
  | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)


def caption_tokens(caption: str) -> list[str]:
    """The tokens of a caption in lower case, without punctuation."""
    text = caption.replace("\n", " ").translate(REPLACED)
    found = (RENAMED.get(token, token.lower()) for token in TOKEN.findall(text))
    return [token for token in found if token not in REMOVED and token.strip("-")]
