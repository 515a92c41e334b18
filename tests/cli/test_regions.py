"""--region and the manifest's column: a part of a picture, told to the model as location tokens."""

import io
import json
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pgcli
from pgcli.checkpoints.config import parse_config
from pgcli.checkpoints.find import BUILTIN
from pgcli.engine.input_processor import InputProcessor, corners
from pgcli.engine.sampler import GREEDY
from pgcli.engine.tokenizer import Tokenizer
from pgcli.errors import ManifestError, UsageError
from pgcli.records import DecodedImage, Item
from pgcli.sources import ReadOptions, open_sources

PICTURE = Path(__file__).parents[2] / "examples" / "images" / "one.png"


@pytest.fixture(scope="module")
def vocabulary():
    return Tokenizer.from_folder(BUILTIN)


def pictured(region, *, width=200, height=100, prompts=("caption en",)):
    item = Item(0, "a", "a", prompts=prompts, region=region)
    return DecodedImage(item, width, height, None, 0.0)


class TestPlaces:
    def test_sides_are_1023rds_of_the_picture_in_the_model_s_order(self):
        assert corners((0, 0, 200, 100), pictured(None)) == (0, 0, 1023, 1023)
        assert corners((100, 25, 150, 75), pictured(None)) == (256, 512, 767, 767)

    def test_what_lies_outside_is_cut_off(self):
        assert corners((-5, -9, 100, 1e9), pictured(None)) == (0, 0, 1023, 512)

    @pytest.mark.parametrize("region", [(200, 0, 300, 50), (0, 100, 9, 101), (-9, -9, 0, 0)])
    def test_nothing_may_be_left(self, region):
        assert corners(region, pictured(None)) is None

    @given(st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4), st.integers(1, 9000))
    def test_whatever_is_asked_the_places_exist(self, sides, width):
        left, top, right, bottom = sides
        found = corners((left, top, right, bottom), pictured(None, width=width))
        if found is not None:
            assert all(0 <= place <= 1023 for place in found)
            assert found[0] <= found[2]
            assert found[1] <= found[3]


class TestPrompts:
    def test_the_tokens_are_those_of_the_spelled_prompt(self, vocabulary):
        """As a model learns them: `caption en <loc....>` tokenised whole."""
        spelled = "caption en <loc0010><loc0020><loc1000><loc1023>"
        whole = tokenizers.Tokenizer.from_file(str(BUILTIN / "tokenizer.json"))
        expected = whole.encode(spelled, add_special_tokens=False).ids
        assert vocabulary.encode_prompt("caption en", (10, 20, 1000, 1023))[1:-1] == expected

    def test_typed_ones_before_them_stay_text(self, vocabulary):
        ids = vocabulary.encode_prompt("what is <loc0001>", (5, 6, 7, 8))
        found = [token for token in ids if token in vocabulary.locations]
        assert found == [vocabulary.locations[place] for place in (5, 6, 7, 8)]

    def test_an_empty_prompt_is_the_tokens_alone(self, vocabulary):
        ids = vocabulary.encode_prompt("", (5, 6, 7, 8))
        assert len(ids) == 6

    def processor(self, vocabulary):
        config = parse_config(json.loads((BUILTIN / "config.json").read_text()))
        return InputProcessor(
            vocabulary, config, GREEDY, task="caption", max_new_tokens=9, model="demo"
        )

    def test_the_row_s_prompt_is_the_prompt_as_sent(self, vocabulary):
        picture = pictured((100, 25, 150, 75), prompts=("caption en", "ocr"))
        requests, refused = self.processor(vocabulary).process(7, picture)
        assert not refused
        locations = "<loc0256><loc0512><loc0767><loc0767>"
        assert [one.prompt for one in requests] == [f"caption en {locations}", f"ocr {locations}"]
        assert [one.row_index for one in requests] == [7, 8]

    def test_a_prompt_that_no_model_has_room_for_is_not_even_encoded(self, vocabulary, monkeypatch):
        monkeypatch.setattr(type(vocabulary), "encode_text", None)
        picture = pictured(None, prompts=("a" * 10**6,))
        requests, ((_, row),) = self.processor(vocabulary).process(0, picture)
        assert (requests, row.error) == ([], "too_large")
        assert "has 1000000 characters" in row.error_message

    def test_a_region_outside_the_picture_is_an_error_row(self, vocabulary):
        image = pictured((200, 0, 201, 1))
        requests, ((index, row),) = self.processor(vocabulary).process(3, image)
        assert (requests, index, row.error, row.prompt) == ([], 3, "too_large", "caption en")
        assert "outside the image of 200 x 100" in row.error_message


class TestManifests:
    @pytest.mark.parametrize(
        "value",
        [[1, 2.5, 30, 40], "1,2.5,30,40", {"xmin": 1, "ymin": 2.5, "xmax": 30, "ymax": 40}],
    )
    def test_each_row_may_bring_its_own(self, tmp_path, value):
        rows = [
            {"image": "a.png", "region": value},
            {"image": "b.png", "region": None},
            {"image": "c"},
        ]
        manifest = tmp_path / "m.jsonl"
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = [item.region for item in open_sources([str(manifest)])]
        assert found == [(1, 2.5, 30, 40), None, None]

    @pytest.mark.parametrize(
        "value",
        [
            [1, 2, 3],
            "1,2,3",
            "Europe",
            [3, 1, 3, 9],
            [1, 2, "x", 9],
            7,
            {"xmin": 1},
            [0, 0, 10**400, 5],
            [False, 0, 1, 1],
        ],
    )
    def test_what_is_none_is_refused_with_its_line(self, tmp_path, value):
        manifest = tmp_path / "m.jsonl"
        manifest.write_text(json.dumps({"image": "a.png", "region": value}))
        with pytest.raises(ManifestError, match=r"line 1.*'region'") as refused:
            open_sources([str(manifest)])
        assert "rename it" in refused.value.hint

    def test_on_standard_input_they_are_read_and_refused_alike(self, monkeypatch):
        given = [{"image": "a.png", "region": "1,2,3,4"}, {"image": "b.png", "region": "Europe"}]
        text = "\n".join(map(json.dumps, given)).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        items = iter(open_sources(["-"]))
        assert next(items).region == (1, 2, 3, 4)
        with pytest.raises(ManifestError, match=r"line 2.*'region'") as refused:
            next(items)
        assert "rename it" in refused.value.hint

    def test_one_for_all_and_one_s_own_exclude_each_other(self, tmp_path):
        manifest = tmp_path / "m.csv"
        manifest.write_text('image,region\na.png,"1,2,3,4"\n')
        with pytest.raises(ManifestError, match="one is given for all") as refused:
            open_sources([str(manifest)], ReadOptions(refuses_regions=True))
        assert "--region" in refused.value.hint

    @pytest.mark.parametrize(
        ("text", "found"),
        [('["a|x", "b"]', ("a|x", "b")), ("a|b |c", ("a", "b", "c")), ("[a]|b", ("[a]", "b"))],
    )
    def test_a_cell_of_choices_is_a_json_list_or_is_cut_at_bars(self, tmp_path, text, found):
        manifest = tmp_path / "m.tsv"
        cell = '"' + text.replace('"', '""') + '"'
        manifest.write_text(f"image\toptions\na.png\t{cell}\n")
        (item,) = open_sources([str(manifest)], ReadOptions(choices_column="options"))
        assert item.choices == found

    @pytest.mark.parametrize(
        ("value", "problem"),
        [([], "are 0"), (["a"], "are 1"), ("a", "are 1"), ("a|", "empty"), (["a", " a"], "twice")],
    )
    def test_choices_that_leave_nothing_to_pick_are_refused_with_their_line(
        self, tmp_path, value, problem
    ):
        manifest = tmp_path / "m.jsonl"
        good = json.dumps({"image": "a.png", "options": ["p", "q"]})
        manifest.write_text(good + "\n" + json.dumps({"image": "b.png", "options": value}))
        with pytest.raises(ManifestError, match=f"line 2.*{problem}"):
            open_sources([str(manifest)], ReadOptions(choices_column="options"))

    def test_a_column_of_choices_that_is_not_there_is_named_with_those_that_are(self, tmp_path):
        manifest = tmp_path / "m.jsonl"
        manifest.write_text(json.dumps({"image": "a.png", "options": "a|b"}))
        with pytest.raises(UsageError, match="'nope'") as refused:
            open_sources([str(manifest)], ReadOptions(choices_column="nope"))
        assert "image, options" in refused.value.hint

    def test_a_picture_alone_brings_no_choices(self):
        with pytest.raises(UsageError, match="has no choices"):
            open_sources([str(PICTURE)], ReadOptions(choices_column="options"))

    @pytest.mark.parametrize("value", [3, [1, 2], None, {"a": "b"}])
    def test_choices_that_are_no_texts_are_refused(self, tmp_path, value):
        manifest = tmp_path / "m.jsonl"
        manifest.write_text(json.dumps({"image": "a.png", "options": value}))
        with pytest.raises(ManifestError, match="choices in 'options'"):
            open_sources([str(manifest)], ReadOptions(choices_column="options"))


def test_the_whole_way_from_python():
    engine = pgcli.load("demo", device="cpu")
    (row,) = engine.caption(PICTURE, region=(0, 0, 10, 10), max_new_tokens=3)
    width, height = Image.open(PICTURE).size
    right, bottom = round(10 / width * 1023), round(10 / height * 1023)
    assert row.prompt == f"caption en <loc0000><loc0000><loc{bottom:04d}><loc{right:04d}>"
