"""The commands in the order of the help, each with its first sentence: known without their modules.

`pgcli --help` is printed from these alone, and a command is imported when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: The commands of each panel of the help, and what they do.
PANELS: Mapping[str, Mapping[str, str]] = {
    "Ask about images": {
        "caption": "Write one caption for each image.",
        "ask": "Ask one or several questions about each image. Without --prompt, each row of a "
        "manifest has its own prompt.",
        "detect": "Find objects in each image, as boxes in its pixels.",
        "segment": "Find objects in each image, as boxes and masks.",
        "ocr": "Read the text in each image.",
    },
    "Embed, label and search": {
        "embed": "Write the embedding of each image: a vector with a length of 1. With --text or "
        "--texts-file, the embeddings of texts.",
        "score": "Score how well each text describes each image; with --text-column, how well the "
        "text in each row of a manifest describes its image.",
        "classify": "Find the most probable labels of each image: those of --label by two towers, "
        "which need no training, or those of a classifier.",
        "search": "Find the images most similar to a text or an image, or near-duplicates.",
    },
    "Look at answers": {
        "view": "Make one page of results: images, answers, boxes and errors.",
        "explain": "Make a page that explains one answer: what each of its tokens attended to, "
        "what else the model considered, and the shape of every tensor from the pixels to the "
        "tokens.",
        "export": "Write answers in the formats of other tools.",
        "status": "Show the progress of a run, during and after it.",
        "check": "Read all rows of an output again and compare them with the input.",
    },
    "Work with answers": {
        "apply": "Correct answers by the edits that a page of results saved.",
        "import": "Read annotations of other tools as rows of truth.",
        "merge": "Merge result files of one input: other prompts, other parts, or another try.",
        "diff": "Compare the answers of two result files, row by row.",
        "eval": "Compare answers with the truth.",
    },
    "Learning": {
        "train": "Train PaliGemma to answer, two towers on images and texts, or a classifier on "
        "labels.",
    },
    "Models and this machine": {
        "info": "Show a model's sizes, the memory it needs and its files, without loading it.",
        "verify": "Prove on a checkpoint that the answers are those of transformers.",
        "bench": "Measure images per second side by side with transformers.",
        "doctor": "Check this machine, and show the command that fixes each problem.",
    },
}


class Listed(NamedTuple):
    """Where a command is listed, and its first sentence."""

    panel: str
    summary: str


COMMANDS: Mapping[str, Listed] = {
    name: Listed(panel, summary)
    for panel, summaries in PANELS.items()
    for name, summary in summaries.items()
}
