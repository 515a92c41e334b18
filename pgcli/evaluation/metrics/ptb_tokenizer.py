"""The tokens of captions as Stanford's PTBTokenizer makes them for CIDEr, without Java.

Written to the output of CoreNLP 3.4.1 with `-lowerCase`, the version of coco-caption.
"""

from __future__ import annotations

import re

#: Removed from the tokens by coco-caption. Its names of brackets are in upper case and match no
#: token, so brackets stay.
REMOVED = frozenset("\" '' ' `` ` . ? ! , : ... .. ;".split())
ENTITIES = {
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&apos;": "'", "&nbsp;": "'",
}  # fmt: skip
BRACKETS = {"[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
#: Characters that the tokenizer replaces.
REPLACED = str.maketrans(
    dict.fromkeys("‘’‹›", "'")
    | dict.fromkeys("“”«»", " '' ")
    | dict.fromkeys("–—―", " -- ")
    | {"…": " ... ", "£": " # ", "€": " $ ", "¢": " cents ", "\u00a0": " ", "\u00ad": ""}
    | {"½": " 1/2 ", "¼": " 1/4 ", "¾": " 3/4 ", "⅓": " 1/3 ", "⅔": " 2/3 "}
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

NUMBER = r"(?:[-+]?\d*(?:[.,:]\d+)+|[-+]\d+)"
ENTITY = "&(?:amp|lt|gt|quot|apos|nbsp);"
WORD = rf"[^\W_]+(?:(?:[-_]|(?!{ENTITY})&|[\u0300-\u036f]+)[^\W_]+)*[\u0300-\u036f]*"
DOMAIN = r"(?:www\.(?:[^\s\"<>|.!?(){},]+\.)+[a-z]{2,4}|(?:[a-z0-9]+\.)+(?:com|net|org|edu)\b)"
TOKEN = re.compile(
    rf"""
    https?://[^\s"<>()]*[^\s"<>().,;:!?] | [\w.+-]+@[\w-]+(?:\.[\w-]+)+         # addresses
  | (?-i:{DOMAIN})(?:/[^\s"<>|()]*[^\s"<>|.!?(){{}},-])?
  | <[A-Za-z/!?][^>\s]*>
  | [@\#][A-Za-z_]\w*
  | \(\d{{2,3}}\)\s?\d{{3,4}}[-\s]?\d{{3,5}}                                       # telephone
  | (?:can(?=not\b)) | (?:(?:gon|wan)(?=na\b)) | (?:(?:got)(?=ta\b)) | (?:(?:gim|lem)(?=me\b))
  | 't(?=(?:is|was)\b) | more(?='n\b) | y'(?=all\b)
  | [^\W\d_]+?(?=n['`]t\b) | n['`]t\b
  | '(?:s|m|d|re|ve|ll|em|n)\b(?:(?<='n)')?
  | (?:o'clock|ma'am|d'ye|ne'er)\b | [a-hj-xz]'(?!re\b|ve\b|ll\b)[^\W\d_]{{2,}}
  | (?:[^\W_]+-)?(?:[^\W\d_]\.)+[^\W\d_]\.(?![^\W_])(?:-(?:(?:[^\W\d_]\.){{2,}}|[^\W_]+))*
  | ph\.d\.(?![^\W_]) | [^\W\d_]\.(?:(?:-[^\W_]+)+|(?![^\W\d_]))
  | (?:{"|".join(ABBREVIATIONS)})\.(?:(?:-[^\W_]+)+|(?![^\W\d_]))
  | [^\W\d_][^\W_]*\.(?=[,;:])                                                  # as in etc.,
  | (?-i:{"|".join(CAPITALISED)})\.(?![^\W\d_])
  | (?:{"|".join(BEFORE_NUMBERS)})\.(?=\s?\d)
  | [^\W_]+(?:-[^\W\d_]+){{0,2}}(?:\\?/[^\W_]+(?:-[^\W\d_]+){{0,2}}){{1,2}}(?![\w/])
  | \d+-\d+/\d+ | \d+/\d+
  | \d+(?:[.,]\d+)+(?:-[^\W_]+)+ | {NUMBER}
  | (?:us|hk|nz|au|nt|ca|a|c)\$ | [^\W\d_]\+\+ | [cf]\# | (?<![^\W_])'\d\ds? | ol'
  | {ENTITY} | << | >>
  | (?-i:[<>]?[:;=][-o*']?[()DPdpO\\:{{@|\[\]](?![A-Za-z])) | \^_\^                      # faces
  | [^\W\d_][^\W_]*(?:[.!?][^\W\d_][^\W_]*)+ | {WORD}
  | [!?]+ | \.{{3}} | \.{{2}} | -+ | '' | '
  | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)


def caption_tokens(caption: str) -> list[str]:
    """The tokens of a caption in lower case, without punctuation."""
    text = caption.replace("\n", " ").translate(REPLACED)
    tokens = " ".join(map(renamed, TOKEN.findall(text))).split()
    return [token for token in tokens if token not in REMOVED and token.strip("-")]


def renamed(token: str) -> str:
    """The token in lower case, with names for brackets and characters for entities."""
    if token[-1] == ";" and token in ENTITIES:
        return ENTITIES[token]
    if token[0] in "([{<>:;=)]}":
        token = BRACKETS.get(token, token).replace("(", "-lrb-").replace(")", "-rrb-")
    return token.lower()
