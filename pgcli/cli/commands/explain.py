"""explain: a page of what the tokens of one answer attended to, and of the shapes on the way."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NewType

import typer

from pgcli import tasks
from pgcli.cli.options import number_option, option
from pgcli.cli.shared_options import Device, Dtype, Quiet, Revision
from pgcli.cli.typer_app import command
from pgcli.cli.ui.console import Screen
from pgcli.errors import NoInputError, UsageError
from pgcli.run.request.options import models

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.records import Item
    from pgcli.tasks import Question

PAGE = "explanation.html"
THUMBNAIL_SIDE = 1024
#: Layers from 0; `()` are all of them.
Layers = NewType("Layers", tuple[int, ...])

_answering = partial(option, "Answering", own=True)
_output = partial(option, "Output", own=True)


def parse_layers(text: str | Layers) -> Layers:
    """Layers of the decoder, which are counted from 1, or `all`."""
    if not isinstance(text, str):
        return text
    if text == "all":
        return Layers(())
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", text) or 0 in (
        numbers := [*map(int, text.split(","))]
    ):
        raise typer.BadParameter(f"{text!r} is neither all nor layers from 1, such as 1,4,8")
    return Layers(tuple(number - 1 for number in numbers))


@command(
    "explain",
    "MODEL is a PaliGemma checkpoint: a folder, a name on the Hub, or demo, the built-in model. "
    "The page contains everything and needs no network and no server.",
    epilog='$ pgcli explain demo photo.jpg --prompt "what is there?"\n'
    "$ pgcli explain google/paligemma-3b-mix-224 photo.jpg --layers 6,12,18",
)
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", hidden=True, autocompletion=models)],
    image: Annotated[str, typer.Argument(metavar="IMAGE", hidden=True)],
    prompt: Annotated[
        str, _answering("--prompt", metavar="TEXT", help="What is asked about the image.")
    ] = "caption en",
    layers: Annotated[
        Layers | None,
        _answering(
            "--layers",
            metavar="[all|N,N...]",
            parser=parse_layers,
            default="up to 8, evenly spread",
            help="The layers of the decoder whose attention is shown, counted from 1.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        number_option(
            "Answering",
            "--max-new-tokens",
            least=1,
            default="64",
            own=True,
            help="Longest answer, in tokens.",
        ),
    ] = None,
    output: Annotated[str, _output("--output", "-o", metavar="FILE", help="The page.")] = PAGE,
    overwrite: Annotated[
        bool, _output("--overwrite", help="Replace a file that is not a page of pgcli.")
    ] = False,
    revision: Revision = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quiet: Quiet = False,
) -> None:
    from pgcli.cli.find_model import find_model

    if not prompt.strip():
        raise UsageError("the prompt is empty", hint='write --prompt "what is this?"')
    question = tasks.ask([prompt], max_new_tokens=max_new_tokens)
    target, item = Path(output), one_item(image, question)
    check_target(target, item, overwrite=overwrite)
    screen = Screen(quiet=quiet)
    checkpoint = find_model(model, revision, screen)
    check_kind(checkpoint)
    with screen.status(f"explaining {item.id}"):
        page = make_page(checkpoint, item, question, layers, device=device, dtype=dtype)
    write_page(page, target, overwrite=overwrite)
    screen.info(f"{target}: {len(page) / 1e3:.1f} kB")


def one_item(image: str, question: Question) -> Item:
    """The one image that the source has, with its prompt. Raises UsageError and NoInputError."""
    from pgcli.inputs import Inventory
    from pgcli.tasks import with_prompts

    items = list(with_prompts(Inventory.scan([image]).items(0, 2), question))
    if not items:
        raise NoInputError(f"{image} has no image", hint="name an image")
    if len(items) > 1:
        raise UsageError(f"{image} has several images", hint="name one: explain is about one image")
    return items[0]


def check_target(target: Path, item: Item, *, overwrite: bool) -> None:
    """Raise if the page cannot be written, before anything is computed."""
    from pgcli.results.gallery.page import is_page
    from pgcli.stores import writing

    if str(target) == "-":
        raise UsageError("a page is not written to standard output", hint="name a file with -o")
    if item.path is not None and os.path.realpath(target) == os.path.realpath(item.path):
        raise UsageError(f"{target} is the image itself", hint=f"name a page: -o {PAGE}")
    writing.check_target(target, "-o", is_folder=False, overwrite=overwrite or is_page(target))


def check_kind(checkpoint: Checkpoint) -> None:
    """Raise UsageError for a model that generates no answers, and InvalidCheckpoint."""
    from pgcli.checkpoints.model_description import read_description

    names = {"two_towers": "a two-tower model", "vision_tower": "a vision tower"}
    kind = read_description(checkpoint.folder).kind
    if kind != "paligemma":
        raise UsageError(
            f"{checkpoint.name} is {names.get(kind, 'an image classifier')}, and explain is for "
            "models that generate answers",
            hint="name a PaliGemma checkpoint, for example demo or google/paligemma-3b-mix-224",
        )


def make_page(
    checkpoint: Checkpoint,
    item: Item,
    question: Question,
    layers: Layers | None,
    *,
    device: str,
    dtype: str,
) -> bytes:
    """The page, once the model has answered."""
    from pgcli.engine.loader import load  # torch, which takes a second
    from pgcli.explain.explain import explain as explain_answer
    from pgcli.explain.page import render_page
    from pgcli.images import ImageLimits, decode
    from pgcli.results.gallery.thumbnails import ThumbnailMaker

    engine = load(checkpoint, device=device, dtype=dtype, batch_size=1)
    image = decode(item, engine.spec, ImageLimits())
    explanation = explain_answer(engine, image, question, layers)
    thumbnail = ThumbnailMaker(THUMBNAIL_SIDE, ImageLimits())(item).pixels
    assert thumbnail is not None  # the image has been decoded
    return render_page(explanation, image, thumbnail.tobytes()).encode()


def write_page(page: bytes, target: Path, *, overwrite: bool) -> None:
    """Write the page under a temporary name, which becomes the target in one step."""
    from pgcli.results.gallery.page import is_page
    from pgcli.stores import LocalStore
    from pgcli.stores.writing import already_exists

    folder = LocalStore(target.parent, follow=True)
    if overwrite or is_page(target):
        folder.replace(target.name, page)
    elif not folder.create(target.name, page):
        raise already_exists(target)
