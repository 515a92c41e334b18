"""Fuzzing: damaged input has a documented outcome. `fuzzing.py` runs it for longer."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import fuzzing
from tests.support.fuzz_labelstudio import labelstudio_boxes
from tests.support.fuzz_yolo import write_folder, yolo_boxes

EXAMPLES = {"images": 150, "manifests": 150, "checkpoints": 150, "answers": 100}
IMPORT_EXAMPLES = 100


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_every_seed_has_a_documented_outcome(target):
    for data in (b"", b"\0", *fuzzing.SEEDS[target]()):
        fuzzing.watched(target, data)


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_damaged_seeds_have_documented_outcomes(target):
    known = list(fuzzing.SEEDS[target]())

    @settings(
        max_examples=EXAMPLES.get(target, IMPORT_EXAMPLES),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.sampled_from(range(len(known))), st.integers(0, 2**32 - 1), st.binary(max_size=40))
    def run(which: int, seed: int, more: bytes) -> None:
        fuzzing.watched(target, fuzzing.damaged(known[which], random.Random(seed)) + more)

    run()


def test_oracles_of_label_studio_and_yolo_read_their_seeds(tmp_path):
    """A seed that its oracle rejects compares nothing."""
    for data in fuzzing.some_labelstudio():
        (tmp_path / "tasks.json").write_bytes(data)
        assert any((labelstudio_boxes(tmp_path / "tasks.json") or {}).values())
    read = []
    for number, data in enumerate(fuzzing.some_yolo()):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_folder(folder, data)
        read.append(yolo_boxes(folder / "data.yaml"))
    *boxes, poses, tracks, confidences = read
    assert all(found and any(found.values()) for found in boxes)
    assert poses is tracks is confidences is None  # Ultralytics ignores the last two


@pytest.mark.slow
@given(st.text())
@settings(max_examples=100)
def test_answer_of_any_text_is_read_back_equal(text):
    fuzzing.watched("answers", text.encode("utf-16-le", "surrogatepass"))
