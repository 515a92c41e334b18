"""The program's commands, each imported when it is called: --help has to be fast.

It is printed from the names and first sentences here.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from pgcli.cli.exits import raise_on_closed_pipe
from pgcli.errors import UsageError

#: The commands of each panel of the help, and what they do.
PANELS: Mapping[str, Mapping[str, str]] = {
    "Ask about images": {
        "caption": "Write one caption for each image.",
        "ask": "Ask one or several questions about each image. Without --prompt, each row of a "
        "manifest has its own prompt.",
        "detect": "Detect objects in each image as boxes in pixels.",
        "segment": "Segment objects in each image as boxes and masks.",
        "ocr": "Read the text in each image.",
    },
    "Embed, label and search": {
        "embed": "Compute a unit-length embedding of each image; with --text or --texts-file, of "
        "each text.",
        "score": "Score how well each text describes each image; with --text-column, how well the "
        "text in each row of a manifest describes its image.",
        "classify": "Find the most probable labels of each image: the labels in --label (two-tower "
        "models) or a classifier's own.",
        "search": "Find the images most similar to a text or an image, or near-duplicates.",
    },
    "Look at answers": {
        "view": "Make one page of results: images, answers, boxes and errors.",
        "explain": "Make a page that explains one answer: what each token attended to, the "
        "alternatives that the model considered, and the shapes of all tensors.",
        "export": "Write answers in the formats of other tools.",
        "status": "Show the progress of a run, during and after it.",
        "check": "Verify that an output is complete and matches its input.",
    },
    "Work with answers": {
        "apply": "Correct answers with the edits that a results page saved.",
        "import": "Import annotations from other tools as ground-truth rows.",
        "merge": "Merge result files of the same input: different prompts, shards, or a retry.",
        "diff": "Compare the answers of two result files, row by row.",
        "eval": "Compare answers with the ground truth.",
    },
    "Learning": {
        "train": "Train PaliGemma, a two-tower model or an image classifier.",
    },
    "Models and this machine": {
        "info": "Show a model's sizes, the memory it needs and its files, without loading it.",
        "verify": "Check that a checkpoint gives the same answers as transformers.",
        "bench": "Measure images per second side by side with transformers.",
        "doctor": "Check this machine, and show the command that fixes each problem.",
    },
}
HELP = ("-h", "--help")
#: The module of each command.
MODULES = {
    command: module
    for module, commands in {
        "answering": [*PANELS["Ask about images"], "embed", "score", "classify"],
        "search": ["search"],
        "results": ["view", "export", "apply", "import", "merge"],
        "checking": ["status", "check", "diff"],
        "models": ["info", "verify", "bench", "doctor", "explain"],
        "learning": ["train", "eval"],
    }.items()
    for command in commands
}


class Declared(NamedTuple):
    """A command for Typer, the records of its options, its first example and the names of the
    `seldom` needed options.
    """

    info: CommandInfo
    records: tuple[type, ...]
    example: str
    seldom: frozenset[str]


#: The imported commands.
DECLARED: dict[str, Declared] = {}


def declaration(name: str) -> Declared:
    """The declaration of a command; imports its module."""
    import_module(f"pgcli.cli.commands.{MODULES[name]}")
    return DECLARED[name]


@cache
def typer_command(name: str) -> Any:
    """Typer's command for a declaration."""
    return typer.main.get_command_from_info(
        declaration(name).info, pretty_exceptions_short=False, rich_markup_mode=app.rich_markup_mode
    )


#: What Typer's help imports and does not use here; it takes 0.08 s.
UNUSED = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}


def import_help() -> None:
    """Import Typer's help without the slow modules that it does not use."""
    stubs = {name: ModuleType(name) for name in UNUSED if name not in sys.modules}
    for name, stub in stubs.items():
        setattr(stub, UNUSED[name], object)
    sys.modules.update(stubs)
    try:
        import_module("typer.rich_utils")
    finally:
        for name in stubs:
            del sys.modules[name]


class FlagHelp:
    """Shows nothing after a flag, for which Typer shows `<bool>`."""

    def format_help(self, context: Any, formatter: Any) -> None:
        import_help()
        super().format_help(context, formatter)  # type: ignore[misc]

    def get_params(self, context: Any) -> Any:
        params = super().get_params(context)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class PgcliCommand(FlagHelp, TyperCommand):
    """A command with `--help` in the panel of running, and `--no-NAME` for every flag.

    Only `--help --all` shows the seldom needed options.
    """

    def get_params(self, context: Any) -> Any:
        params = super().get_params(context)
        params[-1].rich_help_panel = params[-2].rich_help_panel
        seldom = DECLARED[str(self.name)].seldom
        for param in params:
            if param.name in seldom:
                param.hidden = not getattr(context.obj, "shows_all", False)
        return params

    def make_parser(self, context: Any) -> Any:
        """The parser, in which `--no-NAME` turns off a flag that a variable or the file turned on.

        The help does not list these names.
        """
        parser = super().make_parser(context)
        for param in self.get_params(context)[:-1]:
            if getattr(param, "is_flag", False):
                names = [negated(name) for name in param.opts if name.startswith("--")]
                parser.add_option(param, names, param.name, action="store_const", const=False)
        return parser

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Parse the words; a command about one MODEL takes it as `--model` too."""
        if any(
            param.name == "model" and not param.opts[0].startswith("-") for param in self.params
        ):
            args = model_first(args)
        return list(super().parse_args(context, args))

    def collect_usage_pieces(self, context: Any) -> list[str]:
        """What follows the name in the usage line: the arguments, then the options."""
        options, *arguments = super().collect_usage_pieces(context)
        return [*(piece.replace("{", "").replace("}", "") for piece in arguments), options]


def model_first(words: list[str]) -> list[str]:
    """The words with the value of `--model` as the first argument."""
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[number + 1 :]
        if word == "--" or (word == "--model" and not following):
            return words
        if name == "--model":
            value, following = (value, following) if equals else (following[0], following[1:])
            return [value, *words[:number], *following]
    return words


def negated(flag: str) -> str:
    """`--no-NAME` for `--NAME`, and the reverse."""
    name = flag.removeprefix("--no-")
    return f"--{name}" if name != flag else f"--no-{flag.removeprefix('--')}"


class PgcliGroup(FlagHelp, TyperGroup):
    """All commands. Typer would exit with 1 when the reader of a pipe is gone."""

    def __init__(self, **settings: Any):
        listed = {
            name: TyperCommand(name, help=summary, rich_help_panel=panel)
            for panel, summaries in PANELS.items()
            for name, summary in summaries.items()
        }
        super().__init__(**settings | {"commands": listed})

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """The command that the first word names, which is imported now."""
        name, listed, words = super().resolve_command(context, args)
        return name, listed and typer_command(str(name)), words

    def invoke(self, context: Any) -> Any:
        with raise_on_closed_pipe():
            return super().invoke(context)


app = typer.Typer(
    cls=PgcliGroup,
    context_settings={"help_option_names": [*HELP]},
    pretty_exceptions_enable=False,
)


OBJECT, CONFIDENCE = "did you mean --object?", "did you mean --min-confidence?"
#: Hints for options that other commands or tools have, by command; "" is any.
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "--label": dict.fromkeys(("detect", "segment"), OBJECT),
    "--prompt": dict.fromkeys(("detect", "segment"), OBJECT)
    | dict.fromkeys(("caption", "ocr"), 'pgcli ask photos --prompt "how many?" asks questions'),
    "--threshold": dict.fromkeys(("detect", "segment", "view", "export"), CONFIDENCE),
    "--conf": dict.fromkeys(("detect", "segment", "view", "export"), CONFIDENCE),
    "--object": dict.fromkeys(("ask", "caption"), "pgcli detect photos --object cat finds objects"),
    "--question": {"ask": "did you mean --prompt?"},
    "--resume": {"": "run the same command again: it resumes"},
    "--gpus": {"": "did you mean --engines? auto, the default, uses all GPUs"},
}


def to_usage_error(problem: typer.TyperException, words: Sequence[str]) -> UsageError:
    """The error with a message that names the option, and a hint that says what to type or read."""
    command = next(iter(words), "-")
    hint = f"see pgcli {f'{command} ' if command in DECLARED else ''}--help"
    message, _, suggestion = problem.format_message().partition(" Did you mean ")
    if name := getattr(problem, "option_name", None):
        message = problem.message
        known = getattr(problem, "possibilities", None) or ()
        instead = INSTEAD.get(name, {}) if hasattr(problem, "possibilities") else {}
        if command in instead or "" in instead:
            hint = instead.get(command) or instead[""]
        elif close := get_close_matches(name, known, n=1, cutoff=0.75):
            hint = f"did you mean {close[0]}?"
    elif suggestion:
        hint = f"did you mean pgcli {suggestion.rstrip('?')}?".replace("'", "")
    elif getattr(problem, "param", None) and command in DECLARED:
        hint = f"for example: {DECLARED[command].example}; {hint}"
    elif os.path.exists(command):  # noqa: PTH110 - not a name that Path refuses
        hint = f"name a command first: {shlex.join(['pgcli', 'caption', command])}"
    return UsageError(message[:1].lower() + message[1:].removesuffix("."), hint=hint)


def missing(what: str, command: str) -> UsageError:
    """The error of a command line without something that the command needs."""
    example = DECLARED[command].example
    return UsageError(f"missing {what}", hint=f"for example: {example}; see pgcli {command} --help")
