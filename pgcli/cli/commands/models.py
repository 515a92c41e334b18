"""explain: make a page of attention, alternatives and tensor shapes for one answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgcli import tasks
from pgcli.cli.options import CliCall, LoadOptions, command
from pgcli.cli.ui.console import Screen
from pgcli.declare import opt, same
from pgcli.errors import NoInputError, UsageError
from pgcli.run.request.options import RunningOptions, models
from pgcli.text import byte_count

if TYPE_CHECKING:
    from pgcli.checkpoints.find import Checkpoint
    from pgcli.records import Item
    from pgcli.tasks import Question

PAGE = "explanation.html"
THUMBNAIL_SIDE = 1024
Layers = tuple[int, ...]  # from 0; `()` are all of them

_asking = partial(opt, panel="What to ask", own=True)
_output = partial(opt, panel="Where to", own=True)


def parse_layers(text: Any) -> Layers:
    """Layers of the decoder, which are counted from 1, or `all`."""
    if text == "all":
        return ()
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", str(text)) or 0 in (
        numbers := [*map(int, str(text).split(","))]
    ):
        raise ValueError(f"must be all or layers from 1, such as 1,4,8, not {text!r}")
    return tuple(number - 1 for number in numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """The options of `explain`."""

    prompt: str = _asking("Prompt about the image.", default="caption en", metavar="TEXT")
    layers: tuple[int, ...] | None = _asking(
        "Decoder layers whose attention to show, counted from 1.",
        metavar="[all|N,N...]",
        parse=parse_layers,
        default_text="up to 8, evenly spread",
    )
    max_new_tokens: int | None = _asking("Longest answer, in tokens.", min=1, default_text="64")
    output: str = _output("Page to write.", default=PAGE, metavar="FILE", short=("-o",))
    overwrite: bool = _output("Replace the file even if it is not a pgcli page.", default=False)
    quiet: bool = same(RunningOptions, "quiet")


@command(
    "explain",
    "MODEL is a PaliGemma checkpoint: a folder, a name on the Hub, or demo, the built-in model. "
    "The page is self-contained: it needs no network and no server.",
    ExplainOptions,
    LoadOptions,
    examples='$ pgcli explain demo photo.jpg --prompt "what is there?"\n'
    "$ pgcli explain google/paligemma2-3b-mix-224 photo.jpg --layers 6,12,18",
)
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", hidden=True, autocompletion=models)],
    image: Annotated[str, typer.Argument(metavar="IMAGE", hidden=True)],
    call: CliCall,
) -> None:
    from pgcli.cli.find_model import find_model
    from pgcli.results.pages.page import page_target

    options, loading = call.build(ExplainOptions), call.build(LoadOptions)
    if not options.prompt.strip():
        raise UsageError("the prompt is empty", hint='write --prompt "what is this?"')
    question = tasks.ask([options.prompt], max_new_tokens=options.max_new_tokens)
    item = one_item(image, question)
    target = page_target(options.output, inputs=[image], overwrite=options.overwrite)
    target.check()
    screen = Screen(quiet=call.quiet)
    checkpoint = find_model(call, model, screen)
    check_generates(checkpoint)
    with screen.status(f"explaining {item.id}"):
        page = make_page(checkpoint, item, question, options.layers, loading)
    with target.publish() as temporary:
        temporary.write_bytes(page)
    screen.info(f"{target.name}: {byte_count(len(page))}")


def one_item(image: str, question: Question) -> Item:
    """The one image that the source has, with its prompt. Raises UsageError and NoInputError."""
    from pgcli.inputs import Inventory
    from pgcli.tasks import with_prompts

    items = list(with_prompts(Inventory.scan([image]).items(0, 2), question))
    if not items:
        raise NoInputError(f"{image} has no image", hint="name an image")
    if len(items) > 1:
        raise UsageError(f"{image} has several images", hint="name one of them")
    return items[0]


def check_generates(checkpoint: Checkpoint) -> None:
    """Raise UsageError for a model that generates no answers, and InvalidCheckpoint."""
    from pgcli.checkpoints.model_description import read_description

    names = {"two_towers": "a two-tower model", "vision_tower": "a vision tower"}
    kind = read_description(checkpoint.folder).kind
    if kind != "paligemma":
        raise UsageError(
            f"{checkpoint.name} is {names.get(kind, 'an image classifier')}; explain needs a model "
            "that generates answers",
            hint="name a PaliGemma checkpoint, for example demo or google/paligemma2-3b-mix-224",
        )


def make_page(
    checkpoint: Checkpoint,
    item: Item,
    question: Question,
    layers: Layers | None,
    loading: LoadOptions,
) -> bytes:
    """The page, once the model has answered."""
    from pgcli.engine.loader import open_engine  # torch, which takes a second
    from pgcli.explain.explain import explain as explain_answer
    from pgcli.explain.page import render_explanation
    from pgcli.images import ImageLimits, decode
    from pgcli.results.gallery.thumbnails import ThumbnailMaker

    engine = open_engine(checkpoint, device=loading.device, dtype=loading.dtype, batch_size=1)
    image = decode(item, engine.spec, ImageLimits())
    explanation = explain_answer(engine, image, question, layers)
    thumbnail = ThumbnailMaker(THUMBNAIL_SIDE, ImageLimits())(item).pixels
    assert thumbnail is not None  # the image has been decoded
    return render_explanation(explanation, image, thumbnail.tobytes()).encode()
