"""Whether a checkpoint's chat template is the conversation that Gemma 3 was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pgcli.checkpoints.files import CHAT_TEMPLATES, TOKEN_NAMES, read_object
from pgcli.errors import InvalidCheckpoint
from pgcli.stores.files import read_text

MAX_CHARACTERS = 2**14
_PROBE = [
    {"role": "system", "content": [{"type": "text", "text": "s\n"}]},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " t "}]},
]
_RENDERED = (
    "<bos><start_of_turn>user\ns\n\n\n<start_of_image>t<end_of_turn>\n<start_of_turn>model\n"
)


def has_conversations(folder: Path) -> bool:
    """Whether prompts are turns of a conversation: checkpoints without a template take plain text.

    The template is rendered once, in Jinja's sandbox, for a conversation with an image. Raises
    InvalidCheckpoint for a template that makes other text of it.
    """
    template = _read_template(folder)
    if template is None:
        return False
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    try:
        rendered = environment.from_string(template[:MAX_CHARACTERS]).render(
            messages=_PROBE, bos_token="<bos>", eos_token="<eos>", add_generation_prompt=True
        )
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as e:
        raise _unsupported(folder) from e
    if rendered != _RENDERED:
        raise _unsupported(folder)
    return True


def _read_template(folder: Path) -> str | None:
    """The template in the first of the files that has one, as transformers reads them."""
    jinja, in_json = CHAT_TEMPLATES
    if (folder / jinja).is_file():
        return read_text(folder / jinja)
    for name in (in_json, TOKEN_NAMES[0]):
        values: dict[str, Any] = read_object(folder / name) if (folder / name).is_file() else {}
        template = values.get("chat_template")
        if template is not None:
            if not isinstance(template, str):
                raise _unsupported(folder)
            return template
    return None


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _unsupported(folder: Path) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"the chat template of {folder} is not Gemma 3's",
        hint="name Google's checkpoint, or one that was trained with its template",
    )
