"""The engine of ColPali: loaded from a checkpoint, it makes a list of vectors of a page or a text.

B pages · C channels · R resolution · T tokens · V vectors of a page · E size of a vector
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pgcli.checkpoints.config import read_description
from pgcli.checkpoints.files import IMAGE_PROCESSOR_FILES, read_optional
from pgcli.checkpoints.find import Checkpoint
from pgcli.device.select import free_bytes
from pgcli.engine.loader import open_engine
from pgcli.engine.memory import GROUP_TOKENS, SHARE_OF_FREE, group_bytes, run_in_chunks
from pgcli.errors import InvalidCheckpoint, NoUsableDevice, UsageError
from pgcli.model.config import PaliGemmaConfig
from pgcli.model.paligemma import PaliGemma
from pgcli.towers.engine import EmbeddingEngine, open_towers
from pgcli.towers.maps import Word

#: Tokens after a question, which give it more vectors: ColPali was trained with them.
AUGMENTATION, AUGMENTATION_TOKENS = "<pad>", 10


class PromptForm(NamedTuple):
    """The texts around pages and questions. Vectors of different forms cannot be compared."""

    page_prompt: str = "Describe the image."
    question_prefix: str = "Question: "


def read_form(folder: Path) -> PromptForm:
    """The prompt form of a checkpoint: transformers' in `processor_config.json`, or its default."""
    values = read_optional(folder / IMAGE_PROCESSOR_FILES[0])
    names = zip(("visual_prompt_prefix", "query_prefix"), PromptForm(), strict=True)
    texts = {name: values.get(name, text) for name, text in names}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise InvalidCheckpoint(f"{IMAGE_PROCESSOR_FILES[0]}: {name} is {text!r}, not a text")
    return PromptForm(*texts.values())


def open_encoder(
    checkpoint: Checkpoint,
    *,
    adapter: Checkpoint | None = None,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int | None = None,
) -> EmbeddingEngine:
    """An engine of ColPali, with an adapter if given, or of towers: see `open_towers`.

    Raises UsageError for an adapter of other models.
    """
    if read_description(checkpoint.folder).kind == "multi_vector":
        return PageEngine(checkpoint, adapter, device=device, dtype=dtype, batch_size=batch_size)
    if adapter is not None:
        raise UsageError(
            f"<--adapter=> needs ColPali or a model that answers with text, not {checkpoint.name}",
            hint="omit <--adapter=>",
        )
    return open_towers(checkpoint, device=device, dtype=dtype, batch_size=batch_size)


def automatic_pages(
    config: PaliGemmaConfig, dtype: torch.dtype, device: torch.device, free: int
) -> int:
    """How many pages fit into `SHARE_OF_FREE` of the `free` memory and into one pass."""
    kind = device.type
    fitting = int(SHARE_OF_FREE[kind] * free) // group_bytes(config, dtype.itemsize, 1, kind)
    return max(1, min(fitting, GROUP_TOKENS[kind][0] // config.image_tokens))


class PageEngine(EmbeddingEngine):
    """A loaded ColPali. The vectors of a page or a text are rows (V, E) of length 1.

    `form` are the texts around them. The first vectors of a page are those of its patches, row by
    row; `grid` is the number of patches of a side.
    """

    model: PaliGemma

    def __init__(
        self,
        checkpoint: Checkpoint,
        adapter: Checkpoint | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int | None = None,
    ):
        engine = open_engine(checkpoint, adapter=adapter, device=device, dtype=dtype, batch_size=1)
        config, weight = engine.model.config, engine.model.projector.weight
        free = free_bytes(weight.device)
        super().__init__(
            engine.model,
            read_description(checkpoint.folder),
            engine.preprocessing,
            None,
            label=engine.label,
            batch_size=batch_size or automatic_pages(config, weight.dtype, weight.device, free),
        )
        self.form, self._tokenizer = read_form(checkpoint.folder), engine.tokenizer
        self.grid = config.vision.resolution // config.vision.patch_size
        self.page_ids = engine.tokenizer.encode_prompt(self.form.page_prompt)

    @property
    def embedding_dim(self) -> int:
        return self.model.vectors.out_features

    def question_ids(self, text: str) -> list[int]:
        """The ids of a question; a typed `<pad>` is encoded as ordinary characters."""
        tokenizer = self._tokenizer
        ids = [tokenizer.bos, *tokenizer.encode_text(f"{self.form.question_prefix}{text}")]
        ids += [tokenizer.id(AUGMENTATION)] * AUGMENTATION_TOKENS
        return [*ids, tokenizer.newline]

    def question_words(self, text: str) -> list[Word]:
        """The words of a question's own text, with the numbers of their vectors."""
        read, words = "", list[Word]()
        for number, token in enumerate(self.question_ids(text)[1 : -1 - AUGMENTATION_TOKENS], 1):
            piece = self._tokenizer.token_text(token)
            read += piece
            if len(read) <= len(self.form.question_prefix.rstrip()):
                continue
            if words and not piece.startswith(" "):
                before = words.pop()
                words.append(Word(before.text + piece, (*before.vectors, number)))
            else:
                words.append(Word(piece.strip(), (number,)))
        return [word for word in words if word.text]

    def encode_questions(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The vectors (V, E) of each question in float32. Raises NoUsableDevice.

        Questions are encoded one by one: they are few, and so need no padding.
        """
        encoded = []
        for text in texts:
            (vectors,) = run_in_chunks(self._encode_ids, [self.question_ids(text)])
            if vectors is None:
                raise NoUsableDevice(
                    "the device has no memory left for even one text",
                    hint="free memory, use <--dtype bfloat16>, or choose another <--device=>",
                )
            encoded.append(vectors)
        return encoded

    @torch.inference_mode()
    def _encode_ids(self, questions: Sequence[Sequence[int]]) -> Sequence[np.ndarray]:
        token_BT = torch.tensor([*questions], device=self._device)
        return [*self.model.encode_slots(token_BT).float().cpu().numpy()]

    def _encode_pixels(self, pixels_BCRR: Tensor) -> Tensor:
        token_BT = torch.tensor([self.page_ids] * len(pixels_BCRR), device=self._device)
        return self.model.encode_slots(token_BT, self.model.encode(pixels_BCRR))
