"""--region and the region column: a part of an image, given as location tokens in the prompt."""

import json
import re
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pgcli
from pgcli.boxes import location_values
from pgcli.checkpoints.config import parse_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.engine.input_processor import InputProcessor
from pgcli.engine.sampler import GREEDY
from pgcli.engine.tokenizer import Tokenizer
from pgcli.inputs import Inventory, ReadOptions
from pgcli.records import DecodedImage, Item
from pgcli.tasks import Question

IMAGE = Path(__file__).parents[2] / "examples" / "images" / "one.png"


@pytest.fixture(scope="module")
def vocabulary():
    return Tokenizer.from_folder(BUILTIN)


def decoded_image(region, *, width=200, height=100, prompts=("caption en",)):
    item = Item(0, "a", "a", prompts=prompts, region=region)
    return DecodedImage(item, width, height, None, 0.0)


class TestCorners:
    def test_corners_are_1023rds_of_the_image_with_y_first(self):
        assert location_values((0, 0, 200, 100), 200, 100) == (0, 0, 1023, 1023)
        assert location_values((100, 25, 150, 75), 200, 100) == (256, 512, 767, 767)

    @given(st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4), st.integers(1, 9000))
    def test_corners_of_any_region_are_valid_locations(self, sides, width):
        left, top, right, bottom = sides
        found = location_values((left, top, right, bottom), width, 100)
        if found is not None:
            assert all(0 <= corner <= 1023 for corner in found)
            assert found[0] <= found[2]
            assert found[1] <= found[3]


class TestPrompts:
    def test_region_tokens_equal_those_of_the_typed_prompt(self, vocabulary):
        """As in training, where `caption en <loc....>` is tokenized as one text."""
        prompt = "caption en <loc0010><loc0020><loc1000><loc1023>"
        whole = tokenizers.Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))
        expected = whole.encode(prompt, add_special_tokens=False).ids
        assert vocabulary.encode_prompt("caption en", (10, 20, 1000, 1023))[1:-1] == expected

    def test_location_typed_in_a_prompt_stays_text(self, vocabulary):
        ids = vocabulary.encode_prompt("what is <loc0001>", (5, 6, 7, 8))
        found = [token for token in ids if token in vocabulary.locations]
        assert found == [vocabulary.locations[value] for value in (5, 6, 7, 8)]

    def processor(self, vocabulary):
        config = parse_config(json.loads((BUILTIN / "config.json").read_text()))
        question = Question("caption", None, 9)
        return InputProcessor(vocabulary, config, GREEDY, question, model="demo")

    def test_row_has_the_prompt_with_its_locations(self, vocabulary):
        image = decoded_image((100, 25, 150, 75), prompts=("caption en", "ocr"))
        requests, refused = self.processor(vocabulary).process(7, image)
        assert not refused
        locations = "<loc0256><loc0512><loc0767><loc0767>"
        assert [one.prompt for one in requests] == [f"caption en {locations}", f"ocr {locations}"]
        assert [one.row_index for one in requests] == [7, 8]

    def test_prompt_longer_than_any_context_is_not_encoded(self, vocabulary, monkeypatch):
        monkeypatch.setattr(type(vocabulary), "encode_text", None)
        image = decoded_image(None, prompts=("a" * 10**6,))
        requests, ((_, row),) = self.processor(vocabulary).process(0, image)
        assert (requests, row.error) == ([], "too_large")
        assert "has 1000000 characters" in row.error_message

    def test_region_outside_the_image_is_an_error_row(self, vocabulary):
        image = decoded_image((200, 0, 201, 1))
        requests, ((index, row),) = self.processor(vocabulary).process(3, image)
        assert (requests, index, row.error, row.prompt) == ([], 3, "decode_failed", "caption en")
        assert "outside the image (200 x 100 pixels)" in row.error_message


class TestManifests:
    @pytest.mark.parametrize(
        "value",
        [[1, 2.5, 30, 40], "1,2.5,30,40", {"xmin": 1, "ymin": 2.5, "xmax": 30, "ymax": 40}],
    )
    def test_rows_may_have_their_own_region(self, tmp_path, value):
        rows = [
            {"image": "a.png", "region": value},
            {"image": "b.png", "region": None},
            {"image": "c"},
        ]
        manifest = tmp_path / "m.jsonl"
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = [item.region for item in Inventory.scan([str(manifest)])]
        assert found == [(1, 2.5, 30, 40), None, None]

    @pytest.mark.parametrize(
        "value",
        [
            [1, 2, 3],
            "1,2,3",
            [3, 1, 3, 9],
            7,
            {"xmin": 1},
            [0, 0, 10**400, 5],
        ],
    )
    def test_invalid_region_costs_its_row(self, tmp_path, value):
        manifest = tmp_path / "m.jsonl"
        manifest.write_text(json.dumps({"image": "a.png", "region": value}) + '\n{"image": "b"}')
        first, second = Inventory.scan([str(manifest)])
        assert "The 'region' must " in first.fault.message
        assert second.fault is None

    @pytest.mark.parametrize(
        ("text", "found"),
        [("a|b |c", ("a", "b", "c")), ("[a]|b", ("[a]", "b"))],
    )
    def test_choices_in_text_are_separated_by_bars(self, tmp_path, text, found):
        manifest = tmp_path / "m.tsv"
        cell = '"' + text.replace('"', '""') + '"'
        manifest.write_text(f"image\toptions\na.png\t{cell}\n")
        (item,) = Inventory.scan([str(manifest)], ReadOptions(choices_column="options"))
        assert item.choices == found

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            *(([], "are 0"), (["a"], "are 1"), ("a", "are 1"), ("a|", "empty")),
            (["a", " a"], "twice"),
            *((value, "The choices in 'options'") for value in (3, [1, 2], None, {"a": "b"})),
        ],
    )
    def test_invalid_choices_cost_their_row(self, tmp_path, value, problem):
        manifest = tmp_path / "m.jsonl"
        good = json.dumps({"image": "a.png", "options": ["p", "q"]})
        manifest.write_text(good + "\n" + json.dumps({"image": "b.png", "options": value}))
        first, second = Inventory.scan([str(manifest)], ReadOptions(choices_column="options"))
        assert first.fault is None
        assert re.search(problem, second.fault.message)


def test_region_from_python_is_in_the_prompt_of_the_row():
    engine = pgcli.load("demo", device="cpu")
    (row,) = engine.caption(IMAGE, region=(0, 0, 10, 10), max_new_tokens=3)
    width, height = Image.open(IMAGE).size
    right, bottom = round(10 / width * 1023), round(10 / height * 1023)
    assert row.prompt == f"caption en <loc0000><loc0000><loc{bottom:04d}><loc{right:04d}>"
