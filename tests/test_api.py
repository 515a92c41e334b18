"""The Python interface: answers for a path, a folder, bytes or a manifest."""

import io
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import pgcli
from pgcli.boxes import BoxFilter
from pgcli.checkpoints.find import BUILTIN, Checkpoint
from pgcli.engine.output import OutputProcessor
from pgcli.engine.sampler import SamplingParams
from pgcli.errors import (
    InvalidCheckpoint,
    ManifestError,
    ModelUnavailable,
    NoInputError,
    NoUsableDevice,
    PgcliError,
    UsageError,
)
from pgcli.images import ImageSpec
from pgcli.parsing import text_spans
from pgcli.records import Box
from tests.support import pretend
from tests.support.awkward import drawing, encoded

TOKENS = 4


@pytest.fixture(scope="module")
def engine(tiny):
    return pgcli.load(tiny, device="cpu", batch_size=3)


@pytest.fixture
def folder(tmp_path):
    """Images of several sizes, in subfolders too, and one that is broken."""
    for number, name in enumerate(("a.png", "b/c.jpg", "d.webp", "e.png")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            encoded(drawing(40 + number, 30), Path(name).suffix[1:].replace("jpg", "jpeg"))
        )
    (tmp_path / "images" / "b" / "broken.jpg").write_bytes(b"no image")
    return tmp_path / "images"


def captions(engine, source, **options):
    return list(engine.caption(source, max_new_tokens=TOKENS, **options))


def texts(rows):
    return [row.answer for row in rows]


@pytest.mark.slow
def test_first_model_imports_torch_and_not_transformers(tiny):
    code = """if True:
        import sys, pgcli
        pgcli.Engine, pgcli.Answer
        assert "torch" not in sys.modules
        pgcli.load(sys.argv[1], device="cpu")
        assert "torch" in sys.modules
        assert not {"transformers", "pyarrow", "sympy"} & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", code, str(tiny)], check=True, timeout=100)


class TestNames:
    def test_public_names_are_listed(self):
        public = ["Answer", "Box", "Engine", "Item", "Results", "RunReport"]
        public += ["TrainingReport", "__version__", "load", "read", "run", "train"]
        assert sorted(pgcli.__all__) == dir(pgcli) == public
        for name in public:
            assert getattr(pgcli, name) is not None

    def test_unknown_attribute_raises_attribute_error(self):
        with pytest.raises(AttributeError, match="module 'pgcli' has no attribute 'caption'"):
            pgcli.caption  # noqa: B018


class TestLoad:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"model": "no such model"}, ModelUnavailable),
            ({"device": "gpu"}, UsageError),
            ({"device": "cuda:99"}, NoUsableDevice),
            ({"dtype": "float16"}, UsageError),
        ],
    )
    def test_invalid_model_options_raise_errors_with_hints(self, tiny, options, error):
        with pytest.raises(error) as refused:
            pgcli.load(**{"model": tiny, "device": "cpu"} | options)
        assert isinstance(refused.value, PgcliError)
        assert refused.value.hint

    def test_folder_without_a_checkpoint_is_rejected(self, tmp_path):
        with pytest.raises(InvalidCheckpoint):
            pgcli.load(tmp_path)


class TestSources:
    def test_one_file_is_answered(self, engine, folder):
        for source in (folder / "a.png", str(folder / "a.png")):
            (row,) = captions(engine, source)
            assert isinstance(row, pgcli.Answer)
            assert (row.index, row.id, row.image) == (0, str(source), str(source))
            assert (row.task, row.prompt, row.error) == ("caption", "caption en", None)
            assert (row.width, row.height) == (40, 30)
            assert row.tokens <= TOKENS
            assert isinstance(row.answer, str)
            assert row.model == engine.label

    def test_folder_is_answered_in_order_with_error_rows(self, engine, folder):
        rows = captions(engine, folder)
        assert [row.id for row in rows] == ["a.png", "b/broken.jpg", "b/c.jpg", "d.webp", "e.png"]
        assert [row.index for row in rows] == [0, 1, 2, 3, 4]
        assert [row.error for row in rows] == [None, "not_an_image", None, None, None]
        broken = rows[1]
        assert (broken.answer, broken.boxes, broken.tokens) == (None, (), None)
        assert broken.error_message
        assert all(isinstance(row.answer, str) for row in rows if row is not broken)

    @pytest.mark.parametrize("nothing", [[], (), iter(())])
    def test_empty_list_yields_no_answers(self, engine, nothing):
        assert captions(engine, nothing) == []

    def test_lists_and_iterators_of_mixed_sources_are_answered(self, engine, folder):
        paths = [folder / "a.png", folder / "e.png", folder / "d.webp"]
        expected_texts = texts(captions(engine, paths))
        assert len(expected_texts) == 3
        assert texts(captions(engine, iter(map(str, paths)))) == expected_texts
        assert texts(captions(engine, [path.read_bytes() for path in paths])) == expected_texts
        mixed = captions(engine, (paths[0].read_bytes(), paths[1], str(paths[2])))
        assert texts(mixed) == expected_texts
        assert [row.index for row in mixed] == [0, 1, 2]
        assert [row.id for row in mixed] == ["0", str(paths[1]), str(paths[2])]

    def test_an_image_is_answered_before_a_slow_iterator_has_the_next(self, engine, folder):
        answered = threading.Event()

        def images():
            yield folder / "a.png"
            yield (folder / "d.webp").read_bytes()
            assert answered.wait(20), "the next image was waited for"
            yield from (
                folder / "gone.png",
                folder,
                {"image": b"junk", "id": "x"},
                folder / "e.png",
            )

        answers = engine.caption(images(), max_new_tokens=TOKENS)
        rows = [next(answers)]
        answered.set()
        rows += answers
        assert [row.index for row in rows] == [0, 1, 2, 3, 4, 5]
        assert [row.id for row in rows][1:5] == ["1", str(folder / "gone.png"), str(folder), "x"]
        errors = [row.error for row in rows]
        assert errors == [None, None, "missing", "not_a_regular_file", "not_an_image", None]

    def test_broken_bytes_fail_one_row(self, engine, folder):
        good = (folder / "a.png").read_bytes()
        rows = captions(engine, [good, b"", b"junk", good[: len(good) // 2], good])
        assert [row.error for row in rows] == [None, *["not_an_image"] * 2, "truncated", None]
        assert [row.index for row in rows] == [0, 1, 2, 3, 4]
        assert rows[0].answer == rows[4].answer

    def test_a_parquet_manifest_with_bytes_ids_and_prompts(self, engine, folder, tmp_path):
        data = [(folder / name).read_bytes() for name in ("a.png", "d.webp", "e.png")]
        table = pa.table(
            {
                "image": [{"bytes": data[0], "path": None}, *({"bytes": d} for d in data[1:])],
                "id": ["x", "y", "z"],
                "prompt": ["what is it?", "ocr", "how many things are there in all?"],
                "thing": ["cat", "dog", "emu"],
            }
        )
        pq.write_table(table, tmp_path / "m.parquet")
        rows = list(engine.ask(tmp_path / "m.parquet", max_new_tokens=TOKENS))
        assert [row.id for row in rows] == ["x", "y", "z"]
        assert [row.prompt for row in rows] == table["prompt"].to_pylist()
        with pytest.raises(UsageError, match="conflicts with the prompts in the manifest"):
            engine.ask(tmp_path / "m.parquet", "where is the {thing}?")
        pq.write_table(table.drop_columns(["prompt"]), tmp_path / "n.parquet")
        rows = list(engine.ask(tmp_path / "n.parquet", "where is the {thing}?"))
        assert [row.prompt for row in rows] == [f"where is the {x}?" for x in ("cat", "dog", "emu")]

    @pytest.mark.parametrize(
        ("source", "error"),
        [
            ("nowhere.png", UsageError),
            ("empty", NoInputError),
            ("*.png", NoInputError),
            ("notes.txt", UsageError),
            ("broken.parquet", ManifestError),
            ([b"x", "nowhere.png"], UsageError),
        ],
    )
    def test_invalid_source_raises_before_any_answer(
        self, engine, tmp_path, monkeypatch, source, error
    ):
        monkeypatch.chdir(tmp_path)
        Path("empty").mkdir()
        Path("notes.txt").touch()
        Path("broken.parquet").write_bytes(b"PAR1 and so on")
        with pytest.raises(error):
            engine.caption(source)


def as_tensor(file):
    return torch.from_numpy(np.array(Image.open(file).convert("RGB")))


#: Each way to hold the image of a file in memory.
IN_MEMORY = {
    "bytearray": lambda file: bytearray(file.read_bytes()),
    "BytesIO": lambda file: io.BytesIO(file.read_bytes()),
    "BytesIO that was just written": lambda file: written(file.read_bytes()),
    "Pillow": Image.open,
    "Pillow, decoded": lambda file: Image.open(file).convert("RGB"),
    "array": lambda file: np.array(Image.open(file).convert("RGB")),
    "array with alpha": lambda file: np.array(Image.open(file).convert("RGBA")),
    "tensor": as_tensor,
    "tensor that needs a copy": lambda file: as_tensor(file).permute(2, 0, 1).permute(1, 2, 0),
}


def written(data):
    file = io.BytesIO()
    file.write(data)
    return file


class TestRowsAsDicts:
    def test_rows_name_images_of_every_kind_with_id_and_prompt(self, engine, folder):
        (file,) = captions(engine, folder / "a.png")
        rows = [
            {"image": make(folder / "a.png"), "id": name, "shape": "star"}
            for name, make in {"path": str, "Path": Path, **IN_MEMORY}.items()
        ]
        found = captions(engine, [*rows, str(folder / "a.png")])
        assert [row.id for row in found[:-1]] == [row["id"] for row in rows]
        assert set(texts(found)) == {file.answer}
        asked = list(engine.ask(rows[:2], "is there a {shape}?", max_new_tokens=TOKENS))
        assert {row.prompt for row in asked} == {"is there a star?"}
        (own,) = engine.ask(rows[0] | {"prompt": "how many?"}, max_new_tokens=TOKENS)
        assert (own.id, own.prompt) == ("path", "how many?")

    def test_row_with_a_bad_image_is_an_error_row(self, engine, folder):
        given = [{"image": str(folder / "gone.png"), "id": 7}, {"image": b"no"}, {"image": ""}]
        found = captions(engine, given)
        assert [row.id for row in found] == ["7", "1", "2"]
        assert [row.error for row in found] == ["missing", "not_an_image", "missing"]

    def test_incomplete_rows_are_rejected(self, engine, folder):
        image = {"image": str(folder / "a.png")}
        for rows, prompt, message in [
            ([{"picture": "a.png"}], "what?", "row 0 has no column 'image'"),
            ([{}], "what?", "row 0 has no column 'image'"),
            ([image, {"image": 7}], "what?", "row 1: int is not an image"),
            ([image | {"id": [1]}], "what?", r"row 0: the id in 'id' is neither text nor a number"),
            ([image], "a {shape}?", "row 0 has no column 'shape'"),
            ([image], None, "row 0 has no column 'prompt'"),
            ([image | {"prompt": "p"}], "what?", "row 0: the row has its own prompt"),
            (
                [image | {"id": 1}, image | {"id": "1"}],
                "what?",
                "'1' occurs twice: row 0 and row 1",
            ),
        ]:
            with pytest.raises(UsageError, match=message):
                list(engine.ask(rows, prompt))


def closed_by_its_block(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image


def closed_stream(path: Path) -> io.BytesIO:
    stream = io.BytesIO(path.read_bytes())
    stream.close()
    return stream


CLOSED: dict[str, Any] = {"image": closed_by_its_block, "stream": closed_stream}


class TestImagesInMemory:
    @pytest.mark.parametrize("kind", IN_MEMORY)
    def test_image_in_memory_has_the_answer_of_its_file(self, engine, folder, kind):
        (file,) = captions(engine, folder / "a.png")
        (row,) = captions(engine, IN_MEMORY[kind](folder / "a.png"))
        assert (row.index, row.id, row.image, row.error) == (0, "0", "0", None)
        assert (row.width, row.height) == (file.width, file.height)
        assert (row.answer, row.logprob) == (file.answer, file.logprob)

    def test_orientation_of_a_pillow_image_is_applied(self, engine, folder):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.open(folder / "a.png").convert("RGB").save(folder / "turned.jpg", exif=exif)
        (file,) = captions(engine, folder / "turned.jpg")
        (row,) = captions(engine, Image.open(folder / "turned.jpg"))
        assert (row.width, row.height) == (file.width, file.height) == (30, 40)
        assert row.answer == file.answer

    def test_array_of_four_dimensions_is_a_batch_of_images(self, engine, folder):
        pixels = np.array(Image.open(folder / "a.png").convert("RGB"))
        rows = captions(engine, np.stack([pixels, pixels[::-1]]))
        assert [row.index for row in rows] == [0, 1]
        assert rows[0].answer == captions(engine, pixels)[0].answer

    @pytest.mark.parametrize("name", CLOSED)
    def test_closed_image_is_named_as_such(self, engine, folder, name):
        source, good = CLOSED[name](folder / "a.png"), folder / "e.png"
        for given in ([source, good], iter([source, good]), [{"image": source}, {"image": b"x"}]):
            row, other = captions(engine, given)
            assert (row.error, "The image is closed" in row.error_message) == (
                "decode_failed",
                True,
            )
            assert other.error in (None, "not_an_image")

    @pytest.mark.parametrize(
        "source",
        [
            np.zeros((0, 64, 3), np.uint8),
            drawing().crop((5, 5, 5, 9)),
        ],
    )
    def test_image_without_pixels_is_named_as_such(self, engine, source):
        rows = captions(engine, [source, drawing()])
        assert [row.error for row in rows] == ["decode_failed", None]
        assert "has no pixels" in rows[0].error_message

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (np.zeros((4, 4, 3)), "array of float64"),
            (torch.zeros(4, 4, 3), "array of float32"),
            (np.zeros((3, 8, 8), np.uint8), r"shape \(3, 8, 8\)"),
            ([b"x", 3.5], "float is not an image"),
            (None, "None is not an image"),
            (7, "int is not an image"),
            (io.StringIO("a.png"), "StringIO is not an image"),
            ([b"x", io.BufferedReader(io.BytesIO())], "row 1: BufferedReader is not an image"),
            (pa.table({"image": ["a.png"]}), "Table is a table"),
            (pandas.DataFrame({"image": ["a.png"], "id": [7]}), "DataFrame is a table"),
            ([pandas.DataFrame({"image": ["a.png"]})], "row 0: DataFrame is not an image"),
        ],
    )
    def test_other_values_are_rejected_before_any_answer(self, engine, source, message):
        with pytest.raises(UsageError, match=message) as refused:
            engine.caption(source)
        assert refused.value.hint


class TestCallOptions:
    def test_options_of_a_call_reach_the_model(self, folder):
        model = RecordingModel()
        engine = pgcli.Engine(model)
        list(
            engine.caption(
                folder / "a.png", temperature=0.5, top_p=0.9, top_k=7, seed=3, batch_size=2
            )
        )
        assert model.sampling == SamplingParams(0.5, 0.9, 7, 3)
        assert model.batch_size == 2
        list(engine.caption(folder / "a.png"))
        assert (model.sampling, model.batch_size) == (SamplingParams(), None)

    @pytest.mark.parametrize(
        "option",
        [
            *({"temperature": -1}, {"top_p": 0}, {"top_p": 2}, {"top_k": -1}, {"top_k": 0.5}),
            *({"batch_size": 0}, {"batch_size": 2.5}, {"max_new_tokens": 2.5}),
        ],
    )
    def test_invalid_option_is_rejected_at_once(self, engine, folder, option):
        with pytest.raises(UsageError, match=next(iter(option))) as refused:
            engine.caption(folder, **option)
        assert refused.value.hint

    def test_unknown_option_is_rejected(self, engine, folder):
        with pytest.raises(UsageError, match="temprature"):
            engine.caption(folder, temprature=1.0)


class TestQuestions:
    def test_progress_is_a_bar_on_stderr_and_changes_no_row(self, engine, folder, capsys):
        rows = list(engine.ask(folder, ["one?", "two?"], max_new_tokens=1, progress=True))
        shown = capsys.readouterr()
        assert len(rows) == 10
        assert "10/10" in shown.err
        assert shown.out == ""

    def test_invalid_question_is_rejected_at_once(self, engine, folder):
        source = folder / "a.png"
        for ask in (
            lambda: engine.caption(source, lang="not a tag"),
            lambda: engine.caption(source, max_new_tokens=0),
            lambda: engine.ask(source, []),
            lambda: engine.ask(source),
            lambda: engine.ask(source, "the {column}?"),
            lambda: engine.detect(source, []),
            lambda: engine.detect(source, "a ; b"),
        ):
            with pytest.raises(UsageError) as refused:
                ask()
            assert refused.value.hint


class TestDisplay:
    def test_an_engine_shows_its_model_device_dtype_and_batch(self, engine):
        assert repr(engine) == f"<Engine {engine.label}: cpu, float32, batches of up to 3>"

    def test_a_misspelt_option_suggests_the_right_one(self, engine, folder):
        for call in (
            lambda: engine.caption(folder, max_tokens=5),
            lambda: pgcli.run("caption", folder, output="rows.jsonl", max_tokens=5),
            lambda: pgcli.load("demo", devise="cpu"),
        ):
            with pytest.raises(UsageError) as refused:
                call()
            expected = "device" if "devise" in str(refused.value) else "max_new_tokens"
            assert refused.value.hint == f"did you mean {expected}?"
            assert refused.value.__notes__ == [f"hint: {refused.value.hint}"]


class TestManyImages:
    @pytest.fixture
    def forty(self, tmp_path):
        (tmp_path / "many").mkdir()
        for number in range(40):
            name = f"{number:02}.png"
            (tmp_path / "many" / name).write_bytes(encoded(drawing(40 + number, 30), "PNG"))
        (tmp_path / "many" / "17.png").write_bytes(b"junk")
        return tmp_path / "many"

    @pytest.mark.slow
    def test_a_script_needs_no_main_guard(self, tiny, forty, tmp_path):
        """Worker processes do not import the script, which would start it again."""
        script = tmp_path / "script.py"
        script.write_text(
            "import sys, pgcli\n"
            "print('started')\n"
            "engine = pgcli.load(sys.argv[1], device='cpu', batch_size=8)\n"
            "for row in engine.caption(sys.argv[2], max_new_tokens=2, workers=1):\n"
            "    print(row.index, row.id, row.width, row.error)\n"
        )
        command = [sys.executable, str(script), str(tiny), str(forty)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert (done.returncode, done.stderr) == (0, "")
        first, *rows = done.stdout.splitlines()
        assert first == "started"
        sizes = {n: f"{40 + n} None" for n in range(40)} | {17: "None not_an_image"}
        assert rows == [f"{n} {n:02}.png {sizes[n]}" for n in range(40)]

    def test_abandoned_iterator_leaves_no_process(self, engine, forty):
        before = set(psutil.Process().children(recursive=True))
        rows = engine.caption(forty, max_new_tokens=1, workers=1)
        assert next(rows).index == 0
        assert set(psutil.Process().children(recursive=True)) > before
        rows.close()
        assert set(psutil.Process().children(recursive=True)) == before


class RecordingModel:
    """A loaded model that records its question and items."""

    label = "noted@1"
    device = "cpu"
    kind = "paligemma"
    takes_system = False
    spec = ImageSpec(28)

    def ask(self, stream, question, sampling, batch_size):
        self.question, self.regions = question, []
        self.sampling, self.batch_size = sampling, batch_size
        for row_index, image in stream:
            self.regions.append(image.item.region)
            for number, prompt in enumerate(image.item.prompts, row_index):
                yield number, pretend.answer(image, prompt, question.task)


class TestWhatIsAsked:
    @pytest.mark.parametrize(
        ("method", "arguments", "own"),
        [
            ("caption", {"lang": "de"}, {"templates": ("caption de",)}),
            ("ask", {"prompt": ["x", "y"]}, {"templates": ("x", "y")}),
            (
                "ask",
                {"prompt": "x", "choice": ["yes", "no"]},
                {"templates": ("x",), "choices": ("yes", "no")},
            ),
            ("detect", {"object": "cat", "strict": True}, {"objects": ("cat",), "strict": True}),
            ("detect", {"object": ["a", "b"]}, {"templates": ("detect a ; b",), "strict": False}),
            (
                "detect",
                {"object": ["a", "b"], "each": True, "min_confidence": 0.5},
                {"templates": ("detect a", "detect b"), "box_filter": BoxFilter(0.5)},
            ),
            ("segment", {"object": "cat"}, {"objects": ("cat",)}),
            ("ocr", {}, {"templates": ("ocr",)}),
        ],
    )
    def test_question_follows_the_arguments(self, folder, method, arguments, own):
        model, region = RecordingModel(), (1, 2, 30, 20)
        engine = pgcli.Engine(model)
        call = getattr(engine, method)
        list(call(folder / "a.png", **arguments, region=region, max_new_tokens=9))
        settings = own | {"task": method, "region": region, "max_new_tokens": 9}
        assert {name: getattr(model.question, name) for name in settings} == settings
        assert model.regions == [region]
        list(call(folder / "a.png", **arguments))
        assert model.regions == [None]
        assert model.question.max_new_tokens > 9


@pytest.mark.parametrize("model", ["demo", "demo-towers"])
@pytest.mark.parametrize("rows", [0, -3, 2.5])
def test_an_invalid_batch_size_is_rejected_before_the_model_is_loaded(model, rows):
    with pytest.raises(UsageError, match="batch_size"):
        pgcli.load(model, batch_size=rows)


def test_model_options_reach_the_loader(monkeypatch):
    found, loaded = [], {}

    def find(name, revision=None, **more):
        found.append((name, revision, more.get("kind", "model")))
        return Checkpoint(name, BUILTIN)

    def load(checkpoint, **options):
        loaded.update(options, model=checkpoint.name, adapter=options["adapter"].name)
        return RecordingModel()

    monkeypatch.setattr("pgcli.api.engine.find", find)
    monkeypatch.setattr("pgcli.engine.loader.open_engine", load)
    options = {"device": "cuda:1", "dtype": "float32", "batch_size": 7, "quantize": "int8"}
    engine = pgcli.load(
        Path("m"), revision="r", adapter=Path("a"), mask_decoder="vae.npz", **options
    )
    assert found == [("m", "r", "model"), ("a", None, "adapter")]
    assert loaded == {"model": "m", "adapter": "a", "mask_decoder_file": Path("vae.npz")} | options
    assert engine.label == "noted@1"


@pytest.mark.slow
def test_answers_that_are_not_read_to_their_end_end_with_the_program(tmp_path):
    code = """
import itertools, pgcli
answers = pgcli.load("demo").caption(itertools.repeat("one.png"))
print(next(answers).answer)
"""
    folder = Path("examples/images").resolve()
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, b""), run.stderr.decode()
    assert run.stdout


ASKED: dict[str, dict[str, Any]] = {
    "caption": {},
    "ask": {"prompt": ["what?", "which?"]},
    "ask choices": {"prompt": "is it red?", "choice": ["yes", "no"]},
    "detect": {"object": ["star", "cross"]},
    "segment": {"object": "star"},
    "ocr": {},
}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("asked", ASKED)
def test_results_equal_their_file(folder, tmp_path, monkeypatch, asked, ending):
    """Answers have the six digits of a file from the start, whatever the file."""
    spans = text_spans("<loc0101><loc0203><loc0777><loc0999> star")
    spans = [replace(span, probability=1 / 3, near=2 / 3) for span in spans]
    monkeypatch.setattr(OutputProcessor, "_spans", lambda *_: spans)
    engine = pgcli.load("demo", device="cpu")
    found = pgcli.Results(
        getattr(engine, asked.split()[0])(folder, max_new_tokens=TOKENS, **ASKED[asked])
    )
    found.save(tmp_path / f"found.{ending}")
    assert pgcli.read(tmp_path / f"found.{ending}") == found
    assert len(found.errors)
    assert all(
        number == float(f"{number:.6g}")
        for one in found
        for number in (one.logprob or 0.0, *(value for box in one.boxes for value in corners(box)))
    )


def corners(box: Box) -> tuple[float, ...]:
    return box.xmin, box.ymin, box.xmax, box.ymax, box.score, box.confidence or 0.0
