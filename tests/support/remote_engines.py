"""The command line with Ray engines without a model: `python -m tests.support.remote_engines ...`.

Engines answer like the pretended model and take CHUNK_SECONDS for four rows. Some images end their
process: always if the name has `kills`, only the first time if it has `kills once`.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pgcli.checkpoints.find import Checkpoint
from pgcli.cli.main import main
from pgcli.records import Answer, DecodedImage
from pgcli.run import model
from pgcli.run.state import owner
from pgcli.run.workers import ray_engines
from pgcli.tasks import Question
from tests.support import pretend

NOTES = Path("notes")  # a folder beside the images


class LightEngine(pretend.Engine):
    """A pretended model that some images kill."""

    def ask(
        self,
        stream: Iterable[tuple[int, DecodedImage]],
        question: Question,
        sampling: object,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Answer]]:
        for number, image in stream:
            if should_stop():
                return
            time.sleep(float(os.environ.get("CHUNK_SECONDS", "0")) / 4)
            marker = NOTES / f"met {image.item.index}"
            is_first = not marker.exists()
            with marker.open("a") as times:  # a letter for each time
                times.write("x")
            if "kills" in image.item.id and (is_first or "once" not in image.item.id):
                os._exit(1)
            yield from super().ask([(number, image)], question, sampling)


def load_light_engine(request: object, checkpoint: Checkpoint, *_: object) -> LightEngine:
    engine = LightEngine()
    engine.label = checkpoint.label
    return engine


class LightActor(ray_engines.Actor):
    """An actor without a model that records its process."""

    def _run(self) -> None:
        notes = Path(self._task.request.folder, NOTES)
        notes.mkdir(exist_ok=True)
        (notes / f"actor {os.getpid()}").touch()
        model.load_engine = load_light_engine  # type: ignore[assignment]
        super()._run()


if __name__ == "__main__":
    from tests.support import remote_engines  # by this name the actors find the class

    for name, seconds in json.loads(os.environ.get("LEASE", "{}")).items():
        setattr(owner, name, seconds)
    ray_engines.Actor = remote_engines.LightActor  # type: ignore[misc]
    sys.exit(main())
