"""Every option of the answering commands has an effect: runs with and without it differ."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from PIL import Image

from pgcli.checkpoints.find import BUILTIN, find
from pgcli.cli.app import typer_command
from pgcli.cli.main import command_group
from pgcli.images import ImageDecoder, ImageSpec, pool
from pgcli.records import Item
from pgcli.run import model as running
from tests.support import pretend
from tests.support.awkward import drawing
from tests.support.stores import S3, serve

ANSWERING = ("caption", "ask", "detect", "segment", "ocr")


@dataclass
class Outcome:
    """The exit code and output of a command line, and the input of its model."""

    code: int
    out: str
    err: str
    loaded: dict[str, object]
    question: object
    sampling: object
    pixels: list[object]
    workers: int | None

    @property
    def rows(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def column(self, name: str) -> list[object]:
        return [row[name] for row in self.rows]


class RecordingEngine(pretend.Engine):
    """The pretended engine, recording its questions and images."""

    label = find("demo").label
    device = "nowhere"  # on "cpu" the machine is searched for an unused GPU

    def __init__(self):
        self.question = self.sampling = None
        self.pixels = []

    def ask(self, stream, question, sampling, should_stop):
        self.question, self.sampling = question, SimpleNamespace(**sampling)
        for row_index, image in stream:
            self.pixels.append(image.pixels)
            yield from super().ask([(row_index, image)], question, sampling, should_stop)


@pytest.fixture
def folder():
    """The current folder: images, broken images, manifests, an existing output."""
    sizes = {"a": (40, 30), "b": (20, 60), "c": (10, 10), "d": (50, 50)}
    for name in ("photos", "mixed", "linked"):
        Path(name).mkdir()
    for name, size in sizes.items():
        Image.new("RGB", size, "red").save(f"photos/{name}.png")
    shutil.copy("photos/a.png", "mixed/a.png")
    for name in ("x", "y"):
        Path(f"mixed/{name}.png").write_text("not an image")
    shutil.copy("photos/a.png", "outside.png")
    Path("linked/a.png").symlink_to("../outside.png")
    drawing(960, 720).save("large.jpg")
    row = {"image": "photos/a.png", "other": "photos/b.png", "id": "one", "name": "uno"}
    row |= {"prompt": "what?", "question": "who?", "kept": 5, "candidates": "yes|no"}
    Path("rows.jsonl").write_text(json.dumps(row) + "\n")
    Path("unasked.jsonl").write_text(json.dumps(row | {"prompt": None}) + "\n")
    Path("prompts.txt").write_text("how?\nwhy?\n")
    Path("schema.json").write_text(SCHEMA)
    Path("exists.jsonl").write_text("")
    Path("c.toml").write_text("limit = 1")
    Path("masks.npz").touch()


@pytest.fixture
def address(folder):
    """A local HTTP server; the manifest `urls.jsonl` names an image on it."""
    with serve(S3, {"photos/a.png": Path("photos/a.png").read_bytes()}) as url:
        Path("urls.jsonl").write_text(json.dumps({"image": f"{url}/photos/a.png"}) + "\n")
        yield


@pytest.fixture
def run(cli, monkeypatch, address):
    """Runs a command line in this process with a recording model."""

    def run(line: str) -> Outcome:
        engine, loaded, decoding = RecordingEngine(), {}, []

        def find_both(request, *_):
            options, name = request.model, request.model.model or "demo"
            loaded["revision"] = options.revision
            found = [
                one and SimpleNamespace(name=one, label=one, folder=BUILTIN)
                for one in (name, options.adapter)
            ]
            return tuple(found)

        def load(checkpoint, *, adapter, **options):
            loaded.update(options, model=checkpoint.label, adapter=adapter and adapter.label)
            return engine

        def decode_ahead(items, decode, *, workers, total, **more):
            decoding.append(workers)
            return real_decode_ahead(items, decode, workers=0, total=total, **more)

        monkeypatch.setattr(running, "find_checkpoints", find_both)
        monkeypatch.setattr(running, "find_model_config", lambda *_, **__: None)
        monkeypatch.setitem(sys.modules, "pgcli.engine.loader", SimpleNamespace(open_engine=load))
        monkeypatch.setitem(
            sys.modules, "pgcli.engine.sampler", SimpleNamespace(SamplingParams=sampling_params)
        )
        monkeypatch.setitem(
            sys.modules, "pgcli.engine.memory", SimpleNamespace(new_slots=lambda question: None)
        )
        monkeypatch.setattr(pool, "decode_ahead", decode_ahead)
        names = io.BytesIO(b"photos/a.png\0photos/b.png\0")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(names))
        said = cli(line)
        workers = decoding[0] if decoding else None
        return Outcome(*said, loaded, engine.question, engine.sampling, engine.pixels, workers)

    real_decode_ahead = pool.decode_ahead
    return run


def sampling_params(temperature, top_p, top_k, *, seed):
    return {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}


Observe = Callable[[Outcome], object]


def column(name: str) -> Observe:
    return lambda outcome: outcome.column(name)


def loaded(name: str) -> Observe:
    return lambda outcome: outcome.loaded.get(name)


def question(name: str) -> Observe:
    return lambda outcome: getattr(outcome.question, name)


def box_limit(name: str) -> Observe:
    return lambda outcome: getattr(outcome.question.box_filter, name)


def sampling(name: str) -> Observe:
    return lambda outcome: getattr(outcome.sampling, name)


def code(outcome: Outcome) -> int:
    return outcome.code


def row_count(outcome: Outcome) -> int:
    return len(outcome.rows)


def prints(text: str) -> Observe:
    return lambda outcome: text in outcome.err


def made(pattern: str) -> Observe:
    return lambda _: sorted(str(path) for path in Path().glob(pattern))


def saved_rows(file: str) -> Observe:
    return lambda _: len(Path(file).read_text().splitlines()) if Path(file).is_file() else None


def parquet_rows(outcome: Outcome) -> int:
    from pyarrow import dataset

    return dataset.dataset("parts", format="parquet").count_rows() if Path("parts").exists() else 0


def decodes_in_full(outcome: Outcome) -> bool:
    """Whether the first image is decoded in full size before it is resized."""
    item = Item(0, "a", "a", "large.jpg")
    return bool((outcome.pixels[0] == ImageDecoder(ImageSpec(112))(item).pixels).all())


def saved_errors(outcome: Outcome) -> int:
    return sum('"error":"' in line for line in Path("out.jsonl").read_text().splitlines())


def mend_images() -> None:
    for name in ("x", "y"):
        shutil.copy("photos/a.png", f"mixed/{name}.png")


def change_image() -> None:
    Image.new("RGB", (9, 9)).save("photos/a.png")


@dataclass
class Case:
    """An option: a command line without it, what to add, and what is observed in both runs."""

    line: str
    given: str
    observe: Observe
    without: object
    with_option: object
    before: str = ""  # a command line that runs first
    prepare: Callable[[], None] = lambda: None  # runs after that


PHOTOS = "caption photos --model demo"
LETTERS = ["a.png", "b.png", "c.png", "d.png"]
ROW = "ask rows.jsonl --model demo"
SCHEMA = '{"type":"object","properties":{"a":{"type":"string"}},"additionalProperties":false}'
BOX = "segment photos --object a --model demo"
CASES = {
    # model
    "--model": Case("caption photos", "--model me/mine", loaded("model"), "demo", "me/mine"),
    "--revision": Case("caption photos --model m/m", "--revision r", loaded("revision"), None, "r"),
    "--adapter": Case(PHOTOS, "--adapter me/lora", loaded("adapter"), None, "me/lora"),
    "--device": Case(PHOTOS, "--device cuda:1", loaded("device"), "auto", "cuda:1"),
    "--dtype": Case(PHOTOS, "--dtype bfloat16", loaded("dtype"), "auto", "bfloat16"),
    "--quantize": Case(PHOTOS, "--quantize int8", loaded("quantize"), "none", "int8"),
    "--batch-size": Case(PHOTOS, "--batch-size 7", loaded("batch_size"), None, 7),
    "--engines": Case(f"{PHOTOS} --device mps", "--engines 2", lambda outcome: outcome.code, 0, 2),
    "--ray": Case(f"{PHOTOS} -o new.jsonl", "--ray local", lambda done: done.code, 0, 2),
    "--mask-decoder": Case(
        "segment photos --object a --model demo",
        *("--mask-decoder masks.npz", loaded("mask_decoder_file"), None, Path("masks.npz")),
    ),
    # answering
    "--max-new-tokens": Case(PHOTOS, "--max-new-tokens 9", question("max_new_tokens"), 128, 9),
    "--temperature": Case(PHOTOS, "--temperature 0.5", sampling("temperature"), 0.0, 0.5),
    "--top-p": Case(f"{PHOTOS} --temperature 1", "--top-p 0.25", sampling("top_p"), 1.0, 0.25),
    "--top-k": Case(f"{PHOTOS} --temperature 1", "--top-k 3", sampling("top_k"), 0, 3),
    "--system": Case(PHOTOS, "--system x", lambda outcome: outcome.code, 0, 2),  # not for demo
    "--seed": Case(PHOTOS, "--seed 7", sampling("seed"), 0, 7),
    "--region": Case(PHOTOS, "--region 1,2,3,4", question("region"), None, (1, 2, 3, 4)),
    "--lang": Case(PHOTOS, "--lang de", question("templates"), ("caption en",), ("caption de",)),
    "--prompt": Case("ask photos --model demo", "--prompt x", code, 2, 0),
    "--prompts-file": Case(
        "ask photos --model demo --prompt x",
        *("--prompts-file prompts.txt", question("templates"), ("x",), ("x", "how?", "why?")),
    ),
    "--choice": Case(ROW, "--choice yes --choice no", question("choices"), (), ("yes", "no")),
    "--choices-column": Case(
        ROW, "--choices-column candidates", question("choices_column"), None, "candidates"
    ),
    "--schema": Case(ROW, "--schema schema.json", question("schema"), None, SCHEMA),
    "--object": Case("detect photos --model demo", "--object a", code, 2, 0),
    "--strict": Case(
        "detect photos --model demo --object a", "--strict", question("strict"), False, True
    ),
    "--each": Case(
        "detect photos --model demo --object a --object b",
        *("--each", question("templates"), ("detect a ; b",), ("detect a", "detect b")),
    ),
    "--min-confidence": Case(BOX, "--min-confidence 0.5", box_limit("min_confidence"), None, 0.5),
    # input
    "--image-column": Case(ROW, "--image-column other", column("width"), [40], [20]),
    "--id-column": Case(ROW, "--id-column name", column("id"), ["one"], ["uno"]),
    "--prompt-column": Case(ROW, "--prompt-column question", column("prompt"), ["what?"], ["who?"]),
    "--keep": Case(ROW, "--keep kept", lambda done: done.rows[0].get("kept"), None, 5),
    "--limit": Case(PHOTOS, "--limit 2", column("id"), *(LETTERS, ["a.png", "b.png"])),
    "--shard": Case(f"{PHOTOS} -o parts/", "--shard 1/2", parquet_rows, 4, 2),
    "--include": Case(PHOTOS, "--include b.*", column("id"), LETTERS, ["b.png"]),
    "--exclude": Case(PHOTOS, "--exclude b.*", column("id"), LETTERS, ["a.png", "c.png", "d.png"]),
    "--null": Case("caption - --model demo", "--null", prints("NUL byte"), True, False),
    "-0": Case("caption - --model demo", "-0", prints("NUL byte"), True, False),
    "--workers": Case(PHOTOS, "--workers 3", lambda done: done.workers, None, 3),
    "--max-pixels": Case(
        f"{PHOTOS} --limit 1", "--max-pixels 1199", column("error"), [None], ["too_many_pixels"]
    ),
    "--fast-decode": Case(
        "caption large.jpg --model demo", "--fast-decode", decodes_in_full, True, False
    ),
    "--allow-outside-root": Case(
        "caption linked --model demo",
        *("--allow-outside-root", column("error"), ["path_not_allowed"], [None]),
    ),
    "--allow-urls": Case(
        "caption urls.jsonl --model demo --allow-private-hosts",
        *("--allow-urls", column("width"), [None], [40]),
    ),
    "--allow-private-hosts": Case(
        "caption urls.jsonl --model demo --allow-urls",
        *("--allow-private-hosts", column("width"), [None], [40]),
    ),
    # output
    "--output": Case(PHOTOS, "--output out.jsonl", saved_rows("out.jsonl"), None, 4),
    "-o": Case(PHOTOS, "-o out.jsonl", saved_rows("out.jsonl"), None, 4),
    "--format": Case(PHOTOS, "--format text", lambda done: done.out[0], "{", "a"),
    "--draw": Case(
        "detect photos --object a --limit 1 --model demo",
        *("--draw drawn", made("drawn/*"), [], ["drawn/a.png"]),
    ),
    "--sidecar": Case(
        f"{PHOTOS} --limit 1", "--sidecar .txt", made("photos/*.txt"), [], ["photos/a.txt"]
    ),
    "--rows-per-file": Case(
        f"{PHOTOS} -o parts/",
        "--rows-per-file 3",
        *(made("parts/*"), ["parts/part-000000.parquet"]),
        ["parts/part-000000.parquet", "parts/part-000001.parquet"],
    ),
    "--no-timing": Case(PHOTOS, "--no-timing", lambda done: done.rows[0]["vision_ms"], 1.0, None),
    "--overwrite": Case(f"{PHOTOS} -o rows.jsonl", "--overwrite", code, 13, 0),
    # running
    "--on-error": Case("caption mixed --model demo", "--on-error stop", code, 3, 15),
    "--max-errors": Case("caption mixed --model demo", "--max-errors 1", code, 3, 15),
    "--retry-errors": Case(
        "caption mixed --model demo -o out.jsonl",
        *("--retry-errors", saved_errors, 2, 0),
        before="caption mixed --model demo -o out.jsonl",
        prepare=mend_images,
    ),
    "--retry-changed": Case(
        "caption photos --model demo -o out.jsonl",
        *("--retry-changed", code, 13, 0),
        before="caption photos --model demo -o out.jsonl",
        prepare=change_image,
    ),
    "--dry-run": Case(PHOTOS, "--dry-run", lambda done: done.out == "", False, True),
    "--quiet": Case(PHOTOS, "--quiet", lambda done: done.err == "", False, True),
    "-q": Case(PHOTOS, "-q", lambda done: done.err == "", False, True),
    "--verbose": Case(PHOTOS, "--verbose", prints("prompt: caption en"), False, True),
    "-v": Case(PHOTOS, "-v", prints("prompt: caption en"), False, True),
    "--config": Case(PHOTOS, "--config c.toml", row_count, 4, 1),
    "--log-format": Case(PHOTOS, "--log-format json", prints('"event": "summary"'), False, True),
    "--no-progress": Case(
        f"{PHOTOS} --log-format json",
        *("--no-progress", prints('"event": "progress"'), True, False),
    ),
    "--debug": Case("caption nowhere", "--debug", prints("Traceback"), False, True),
    "--help": Case(PHOTOS, "--help", lambda done: "Usage" in done.out, False, True),
    "-h": Case(PHOTOS, "-h", lambda done: "Usage" in done.out, False, True),
}


@pytest.mark.parametrize("option", CASES)
@pytest.mark.parametrize("is_given", [False, True], ids=["without", "with"])
def test_option_has_its_effect(run, option, is_given):
    case = CASES[option]
    assert option in case.given.split()
    assert case.without != case.with_option
    if case.before:
        run(case.before)
    case.prepare()
    outcome = run(f"{case.line} {case.given}" if is_given else case.line)
    assert case.observe(outcome) == (case.with_option if is_given else case.without), outcome.err


@pytest.mark.parametrize(("share", "exit_code"), [("60%", 15), ("70%", 3), ("100%", 3)])
def test_max_errors_takes_a_share_of_all_rows(run, share, exit_code):
    assert run(f"caption mixed --model demo --max-errors {share}").code == exit_code


def options_of(command: str) -> set[str]:
    """The options that the help of a command shows."""
    group = command_group().make_context("pgcli", [], resilient_parsing=True)
    context = typer.Context(typer_command(command), parent=group)
    params = context.command.get_params(context)
    return {name for param in params for name in param.opts if name.startswith("-")}


def test_table_has_every_option_of_the_answering_commands():
    """`docs/reference/options.md` lists the options of each command."""
    assert CASES.keys() == set.union(*map(options_of, ANSWERING))
