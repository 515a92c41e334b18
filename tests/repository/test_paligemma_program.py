"""examples/lessons/paligemma.py answers as pgcli does, and has the shapes of a published model."""

import ast
from pathlib import Path

import pytest
import torch

import pgcli
from examples.lessons import paligemma as program
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.families.paligemma import parse_config
from pgcli.engine.sampler import OutputVocabulary
from tests.support.published import paligemma_3b
from tests.support.runs import EXAMPLES
from tests.support.sequences import run_together
from tests.support.tiny import checkpoint_into

IMAGES = sorted(EXAMPLES.iterdir())
PROMPTS = ["caption en", "detect star ; circle"]
#: Prompts of several lengths, in ids of the built-in model's tokenizer.
RAGGED = [[2, 300, 108], [2, 301, 302, 303, 304, 305, 108], [2, 108], [2, 9, 108]]


@pytest.fixture(scope="module")
def demo():
    return program.load("demo")


def answers(demo, image: Path, prompts: list[str] = PROMPTS) -> list[list[int]]:
    model, tokenizer = demo
    pixels_CRR = program.read_pixels(image, model.config.vision.resolution)
    rows = [program.prompt_ids(tokenizer, prompt) for prompt in prompts]
    return program.generate(model, pixels_CRR.expand(len(rows), -1, -1, -1), rows)


def test_program_has_300_lines_and_imports_only_the_reading_of_files():
    text = Path(program.__file__).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    modules = [n.module for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom)]
    own = [module for module in modules if module.startswith("pgcli")]
    assert {module for module in own if not module.startswith("pgcli.checkpoints.")} == {
        "pgcli.model.config"  # the sizes that a checkpoint's config.json has
    }


def test_program_gives_the_tokens_of_the_built_in_model(demo):
    engine = pgcli.load("demo", dtype="float32")
    captions = list(engine.caption(IMAGES))
    boxes = list(engine.detect(IMAGES, ["star", "circle"]))
    assert len(captions) == len(boxes) == len(IMAGES) > 10
    for image, *expected in zip(IMAGES, captions, boxes, strict=True):
        for ids, answer in zip(answers(demo, image), expected, strict=True):
            assert demo[1].decode(ids, skip_special_tokens=False).strip() == answer.answer
            assert len(ids) + 1 == answer.tokens  # with the stop token


def test_program_has_every_weight_of_paligemma_3b():
    config = parse_config(paligemma_3b())
    with torch.device("meta"):
        model = program.PaliGemma(config)
        assert sum(weight.numel() for weight in model.parameters()) == 2_923_466_480
        patch_BPD = model.projector(model.vision(torch.empty(2, 3, 224, 224)))
        x_BSD = torch.cat([patch_BPD, model.decoder.embed(torch.zeros(2, 9).long())], dim=1)
        cache = {}
        is_real_BS = torch.ones(2, 256 + 9, dtype=torch.bool)
        assert model.decoder(x_BSD, is_real_BS, cache).shape == (2, 257_216)
        step = model.decoder.embed(torch.zeros(2, 1).long())
        is_real_BS = torch.ones(2, 256 + 10, dtype=torch.bool)
        assert model.decoder(step, is_real_BS, cache).shape == (2, 257_216)
    assert len(cache) == 18
    assert {tuple(layer.shape) for layer in cache.values()} == {(2, 2, 1, 266, 256)}


@pytest.mark.parametrize(
    "layout",
    [
        {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16},  # as PaliGemma 3b
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 4},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8},
    ],
    ids=str,
)
def test_program_answers_as_pgcli_for_every_grouping_of_heads(tmp_path, layout):
    folder = checkpoint_into(tmp_path, **layout)
    model, _ = program.load(str(folder))
    reference = weights.load_paligemma(folder, read_config(folder), dtype=torch.float32)
    size = model.config.vision.resolution
    pixels_BCRR = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    ids = program.generate(model, pixels_BCRR, [torch.tensor(prompt) for prompt in RAGGED])
    vocabulary = OutputVocabulary(model.config.image_token_id, model.config.image_token_id, (1,))
    rows = run_together(reference, reference.encode(pixels_BCRR), RAGGED, vocabulary, 128)
    assert ids == [[token for token in row.tokens if token != 1] for row in rows]


def causal(query_BNLH, key_BNSH, value_BNSH, mask_B11S=None):
    """With a causal mask over image and prompt."""
    if mask_B11S is not None and query_BNLH.shape[2] > 1:
        slots = query_BNLH.shape[2]
        mask_B11S = mask_B11S & torch.ones(slots, slots, dtype=torch.bool).tril()
    return ATTEND(query_BNLH, key_BNSH, value_BNSH, mask_B11S)


def neighbours(x_BNLH, position_BL, theta):
    """With the pairs 2i and 2i + 1, where Gemma has i and i + H / 2."""
    size = x_BNLH.shape[-1]
    order = torch.arange(size).view(-1, 2).T.flatten()
    return ROTATE(x_BNLH[..., order], position_BL, theta)[..., order.argsort()]


def plain_norm(self, x):
    """Times w instead of 1 + w."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


ATTEND, ROTATE = program.attend, program.rotate


@pytest.mark.parametrize(
    ("part", "mistake"),
    [("attend", causal), ("rotate", neighbours), ("RMSNorm.forward", plain_norm)],
)
def test_a_mistake_in_the_program_changes_its_answers(demo, monkeypatch, part, mistake):
    monkeypatch.setattr(program, "MAX_NEW_TOKENS", 12)
    right = [answers(demo, image) for image in IMAGES[:4]]
    monkeypatch.setattr(f"{program.__name__}.{part}", mistake)
    assert [answers(demo, image) for image in IMAGES[:4]] != right
