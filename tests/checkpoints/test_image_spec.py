"""How images are prepared is known before the model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.model_description import read_image_spec
from pgcli.engine.loader import load


def test_images_are_decoded_for_the_model_before_it_is_loaded(base: Path) -> None:
    assert read_image_spec(base) == load(Checkpoint("tiny", base), device="cpu").spec


def test_resampling_filter_is_that_of_the_checkpoint(tiny: Path, tmp_path: Path) -> None:
    for name, values in (("config.json", {}), ("preprocessor_config.json", {"resample": 2})):
        file = tiny / name
        read = json.loads(file.read_text()) if file.exists() else {}
        (tmp_path / name).write_text(json.dumps(read | values))
    assert read_image_spec(tiny).resample == 3
    assert read_image_spec(tmp_path).resample == 2
