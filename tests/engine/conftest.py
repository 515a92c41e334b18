"""An engine that the tests of a file share."""

import pytest

from pgcli.checkpoints.find import Checkpoint
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.loader import open_engine


@pytest.fixture(scope="module")
def loaded(tiny) -> InferenceEngine:
    return open_engine(Checkpoint("tiny", tiny), device="cpu", dtype="float32", batch_size=8)
