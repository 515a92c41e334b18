"""Tests `pgcli bench`: equal inputs, measured speeds, the roofline limit and the output."""

import json
import shutil
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import islice

import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pgcli import tasks
from pgcli.bench import benchmark, roofline
from pgcli.bench import runners as programs
from pgcli.bench.benchmark import BenchImages
from pgcli.bench.report import agreement, compare_programs, in_turns, speedup
from pgcli.bench.roofline import MachineRates, PeakRates, Stages, Workload, limit
from pgcli.bench.runners import BenchInputs, BenchRun, EngineRunner, ReferenceRunner, StageTimer
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import parse_config, read_config
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import read_preprocessing
from pgcli.cli.main import main
from pgcli.engine import loader as engines
from pgcli.engine.engine import InferenceEngine
from pgcli.engine.memory import cache_bytes
from pgcli.errors import NoUsableDevice
from pgcli.inputs import Inventory
from pgcli.model.siglip import normalize_pixels
from pgcli.verify import reference
from pgcli.verify.reference import generate_images
from tests.support.awkward import drawing
from tests.support.published import paligemma_3b

PROMPT = "answer en which colour does the shape in the middle have?"
SLEPT = 0.5  # seconds: far more than a run of the tiny model takes


@pytest.fixture(autouse=True)
def fixed_machine_rates(monkeypatch):
    """Replaces the measured rates of the machine; a test can undo it."""
    reported = MachineRates("a machine", 1, PeakRates(1e12, 1e10))
    monkeypatch.setattr(roofline, "measure_rates", lambda *given: reported)


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    monkeypatch.setattr(benchmark, "TOKENS", 4)
    monkeypatch.setattr(benchmark, "SECONDS", 0.0)


def measured(folder, **options):
    settings = {"batch_size": 2, "quantize": "none", "fast_decode": False}
    settings["items"] = generate_images()
    return benchmark.bench(
        Checkpoint("tiny", folder),
        **(settings | options),
        device="cpu",
        dtype="float32",
        waiting=lambda message: nullcontext(),
    )


@pytest.fixture
def runners(tiny, tmp_path):
    """The runners of both programs on the tiny checkpoint, and a factory of their inputs."""
    return make_runners(tiny, tmp_path)


def make_runners(folder, tmp_path, *, static=False):
    engine = engines.open_engine(Checkpoint("tiny", folder), device="cpu", dtype="float32")
    config = engine.model.config
    with reference.quiet_transformers():
        model = reference.load_reference(folder, torch.float32, torch.device("cpu"))
        about = read_preprocessing(folder, config.vision.resolution)
        size = engine.tokenizer.size
        other = ReferenceRunner(model, folder, config, about, vocabulary=size, static=static)
    pool = BenchImages(generate_images(), engine.spec, tmp_path)

    def work(*lengths, images=9, batch=4):
        """Rows whose answers cycle through these lengths."""
        decoded, files = pool.first(images)
        question = tasks.ask((PROMPT,), max_new_tokens=max(lengths))
        each = tuple(lengths[row % len(lengths)] for row in range(images))
        ids = engine.tokenizer.encode_prompt(PROMPT)
        return BenchInputs(decoded, files, question, ids, each, batch)

    return EngineRunner(engine), other, work


class TestEqualInputs:
    def test_both_programs_get_the_same_pixels_and_ids(self, tiny, runners, monkeypatch):
        engine_runner, hf_runner, work = runners
        generated, generate = [], hf_runner.model.generate
        monkeypatch.setattr(
            hf_runner.model,
            "generate",
            lambda **given: generated.append(given) or generate(**given),
        )
        given = work(2, images=2)
        hf_runner.run_arrays(given)
        about, (inputs,) = read_preprocessing(tiny, 56), generated
        pixels = torch.stack([torch.from_numpy(image.pixels) for image in given.images])
        mean, std = torch.tensor(about.mean), torch.tensor(about.std)
        expected = normalize_pixels(pixels, mean, std, torch.float32)
        torch.testing.assert_close(inputs["pixel_values"], expected)
        image_token = engine_runner._engine.model.config.image_token_id
        assert inputs["input_ids"][0].tolist() == [image_token] * 16 + given.prompt_ids
        assert not inputs["token_type_ids"].any()

    @pytest.mark.parametrize(
        ("folder", "static"), [("tiny", False), ("tiny", True), ("tiny2", False)]
    )
    def test_answers_of_several_lengths_have_the_same_tokens_in_both(
        self, request, tmp_path, folder, static
    ):
        model = request.getfixturevalue(folder)
        engine_runner, hf_runner, work = make_runners(model, tmp_path, static=static)
        assert hf_runner.name == "transformers" + ", static cache" * static
        assert hf_runner.attention["decoder"] == ("eager" if folder == "tiny2" else "sdpa")
        given = work(3, 9, 5, 7)
        mine, other = engine_runner.run_arrays(given), hf_runner.run_arrays(given)
        assert mine.tokens == other.tokens
        assert [len(tokens) for tokens in mine.tokens] == list(given.lengths)
        assert len(set(given.lengths)) > 2

    def test_tokens_outside_the_vocabulary_are_masked(self, runners):
        _, hf_runner, _ = runners
        score_BV = torch.arange(8.0).repeat(2, 1)
        with StageTimer(
            hf_runner.model, torch.device("cpu"), vocabulary=6, image_token=4
        ) as listener:
            listener.start_batch()
            assert listener(torch.zeros(2, 1), score_BV).argmax(-1).tolist() == [5, 5]
            score_BV[:, 5] = 0
            assert listener(torch.zeros(2, 1), score_BV).argmax(-1).tolist() == [3, 3]

    def test_photographs_are_upright_and_read_a_few_at_a_time(self, runners, tmp_path, monkeypatch):
        ours, other, _ = runners
        monkeypatch.setattr(programs, "MAX_PIXELS", 250 * 200)
        exif = Image.Exif()
        exif[0x0112] = 6
        for number in range(4):
            drawing(240, 200 + number).save(tmp_path / f"{number}.jpg", exif=exif)
        (tmp_path / "2.jpg").write_bytes(b"\xff\xd8 no JPEG")
        items = iter(Inventory.scan([str(tmp_path)]))
        images, files = BenchImages(items, ours._engine.spec, tmp_path).first(4)
        assert [file.name for file in files] == ["0.jpg", "1.jpg", "3.jpg"]
        assert (images[0].width, images[0].height) == (200, 240)
        ids = ours._engine.tokenizer.encode_prompt("ocr")
        given = BenchInputs(images, files, tasks.ask(("ocr",)), ids, (5,) * 3, 3)
        runs = [side.run_files(given, tmp_path / "rows.jsonl") for side in (ours, other)]
        assert runs[0].tokens == runs[1].tokens == other.run_arrays(given).tokens

    def test_both_write_a_row_for_every_file(self, runners, tmp_path):
        engine_runner, hf_runner, work = runners
        given, written = work(3), []
        for side in (engine_runner, hf_runner):
            output = tmp_path / "rows.jsonl"
            run = side.run_files(given, output)
            assert len(run.tokens) == len(given.images)
            written.append([json.loads(line) for line in output.read_text().splitlines()])
        mine, other = written
        assert [row["image"] for row in mine] == [row["image"] for row in other]
        assert [row["answer"] for row in mine] == [row["answer"] for row in other]


class TestSpeeds:
    def test_runs_alternate_in_both_orders(self):
        order = []

        def act(name):
            def run():
                order.append(name)
                return BenchRun(float(len(order)), Stages(0, 0, 0), ())

            return run

        runs = in_turns([act("A"), act("B")], rounds=3)
        assert "".join(order) == "ABBAAB"
        assert [run.seconds for run in runs[1]] == [2, 3, 6]

    def test_ratio_compares_medians_and_has_the_range_of_rounds(self):
        reported = speedup("other", [1.0, 2.0, 4.0], [3.0, 3.0, 20.0])
        assert (reported.times, reported.lowest, reported.highest) == (1.5, 1.5, 5.0)
        runs = [BenchRun(seconds, Stages(0, 0, 0), ((),) * 8) for seconds in (1.0, 2.0, 4.0)]
        (pace,) = compare_programs(["this"], [runs]).speeds
        assert (pace.rows_per_second, pace.slowest, pace.fastest) == (4.0, 2.0, 8.0)

    def test_the_start_of_decoding_processes_is_measured_separately(
        self, runners, tmp_path, monkeypatch
    ):
        ours, _, work = runners
        decode_ahead = programs.decode_ahead

        def starts_slowly(*arguments, **options):
            time.sleep(SLEPT)
            return decode_ahead(*arguments, **options)

        monkeypatch.setattr(programs, "decode_ahead", starts_slowly)
        run = ours.run_files(work(3), tmp_path / "rows.jsonl")
        assert run.start_seconds >= SLEPT
        assert run.clock_seconds == run.seconds - run.start_seconds > 0
        (speed,) = compare_programs(["pgcli"], [[run]]).speeds
        assert speed.rows_per_second == pytest.approx(9 / run.clock_seconds)
        assert speed.start_seconds == run.start_seconds
        assert speed.busy == run.stages.total / run.clock_seconds

    @pytest.mark.parametrize(
        ("batch_seconds", "batch", "device", "length"),
        [
            (60.0, 8, "cpu", (1, 5)),
            (1.0, 8, "cpu", (6, 5)),
            (60.0, 256, "cuda:0", (8, 2)),
            (1.0, 256, "cuda:0", (8, 4)),
            (0.1, 256, "cuda:0", (32, 5)),
            (1.0, 2048, "cuda:0", (4, 5)),
        ],
    )
    def test_runs_on_a_gpu_have_eight_batches(
        self, batch_seconds, batch, device, length, monkeypatch
    ):
        monkeypatch.setattr(benchmark, "ROUNDS", 5)
        monkeypatch.setattr(benchmark, "SECONDS", 60.0)
        assert benchmark.run_length(batch_seconds, batch, device) == length

    @pytest.mark.slow
    def test_few_images_are_repeated_on_a_gpu_after_a_batch_that_compiles(self, tiny, monkeypatch):
        monkeypatch.setattr(InferenceEngine, "device", "cuda:0")
        warm_ups, run_arrays = [], EngineRunner.run_arrays
        monkeypatch.setattr(
            EngineRunner,
            "run_arrays",
            lambda self, inputs: warm_ups.append(len(inputs.images)) or run_arrays(self, inputs),
        )
        report = measured(tiny, items=islice(generate_images(), 3))
        assert report.files.rows == report.model.rows == 8 * 2
        assert report.files.agreements[0].share == 1
        assert warm_ups == [2, 2, 16, 16]


class TestAgreement:
    def test_agreement_is_less_than_1_for_changed_weights(self, tiny, monkeypatch):
        whole = weights.load_paligemma

        def load(*arguments, finish, **options):
            def negate(model, part):
                if part is model.decoder.layers[1]:
                    part.mlp.down_proj.weight.mul_(-1)
                finish(model, part)

            return whole(*arguments, finish=negate, **options)

        monkeypatch.setattr(weights, "load_paligemma", load)
        assert measured(tiny).model.agreements[0].share < 1

    def test_tokens_after_the_first_difference_are_not_counted(self):
        compared = agreement("other", [(1, 2, 3), (4, 5)], [(1, 9, 3), (4, 5)])
        assert (compared.tokens, compared.share) == (5, 0.6)
        assert agreement("other", [(1,)], [(1, 2)]).share == 0.5


class TestRoofline:
    @pytest.mark.parametrize("generation", [1, 2])
    def test_flops_equal_pytorchs_count(self, tiny, tiny2, generation):
        folder = tiny if generation == 1 else tiny2
        config = read_config(folder)
        model = weights.load_paligemma(folder, config, dtype=torch.float32)
        with reference.quiet_transformers():
            other = reference.load_reference(folder, torch.float32, torch.device("cpu"))
        rows, prompt, size = 2, 5, config.vision.resolution
        pixels, token_BT = torch.zeros(rows, 3, size, size), torch.ones(rows, prompt).long()
        slots = config.image_tokens + prompt
        seen = roofline.vision(config, rows, 4).flops
        least = roofline.prefill(config, rows, prompt, 4).flops
        more = roofline.step(config, rows, slots + 1, 4).flops

        patch_BPD = model.encode(pixels)
        cache = model.kv_cache(rows)
        assert counted(lambda: model.encode(pixels)) == seen
        assert counted(lambda: model.prefill(patch_BPD, token_BT, None, cache)) == least
        assert counted(lambda: model.decode_step(token_BT[:, 0], cache)) == more

        image_BP = torch.full((rows, config.image_tokens), config.image_token_id)
        token_BS = torch.cat([image_BP, token_BT], dim=1)
        types = torch.zeros_like(token_BS)

        def passes(tokens):
            settings = {"max_new_tokens": tokens, "do_sample": False, "eos_token_id": None}
            other.generation_config = reference.import_transformers().GenerationConfig(
                pad_token_id=0, **settings
            )
            inputs = {"input_ids": token_BS, "pixel_values": pixels, "token_type_ids": types}
            return counted(lambda: other.generate(**inputs, attention_mask=torch.ones_like(types)))

        with reference.quiet_transformers():
            first = passes(1)  # transformers computes the last layer for every slot
            assert first > seen + least
            if config.decoder.sliding_window is None:  # transformers frees slots outside the window
                assert passes(2) == first + more

    def test_bytes_are_the_weights_and_the_cache(self, tiny):
        config = read_config(tiny)
        model = weights.load_paligemma(tiny, config, dtype=torch.float32)
        names = [n for n, p in model.decoder.named_parameters() if p.ndim == 2]
        matrices = sum(dict(model.decoder.named_parameters())[n].nbytes for n in names)
        slots, rows = 30, 3
        per_slot = cache_bytes(config, 4)
        moved = per_slot * rows * (slots + 1) + rows * 8 * config.decoder.vocab_size
        assert roofline.step(config, rows, slots, 4).bytes == matrices + moved
        parameters = [*model.vision.parameters(), *model.projector.parameters()]
        assert 0.8 < roofline.vision(config, 1, 4).bytes / sum(p.nbytes for p in parameters) < 1

    def test_limit_of_a_3b_on_an_h200_equals_a_manual_estimate(self):
        config = parse_config(paligemma_3b())
        work = Workload(256, 16, [32] * 256, 2)
        seconds = limit(config, work, PeakRates(790e12, 4.3e12)).total
        assert 256 / seconds == pytest.approx(555, rel=0.02)

    def test_finished_row_costs_nothing(self, tiny):
        config, roof = read_config(tiny), PeakRates(1e9, 1e9)
        equal = limit(config, Workload(4, 5, [8] * 4, 4), roof)
        uneven = limit(config, Workload(4, 5, [2, 2, 2, 8], 4), roof)
        assert uneven.vision == equal.vision
        assert uneven.decode == pytest.approx(equal.decode * 10 / 28, rel=0.05)
        assert limit(config, Workload(4, 5, [1] * 4, 4), roof).decode == 0

    def test_the_highest_rates_of_the_models_shapes_are_the_peak(self, tiny, monkeypatch):
        monkeypatch.undo()
        monkeypatch.setattr(roofline, "PRODUCT_SECONDS", 1e-9)
        monkeypatch.setattr(roofline, "BUFFER_BYTES", 2**20)
        monkeypatch.setattr(roofline, "LARGE", (64, 64))
        monkeypatch.setattr(roofline, "LARGE_ROWS", {"cpu": 32})
        config, product = read_config(tiny), roofline._product
        rates = {}

        def recorded(*shape):
            rates[shape[:3]] = product(*shape)
            return rates[shape[:3]]

        monkeypatch.setattr(roofline, "_product", recorded)
        measured = roofline.measure_rates(config, 2, torch.device("cpu"), torch.bfloat16)
        assert (32, 64, 64) in rates
        assert list(rates)[-1][1:] == (config.decoder.mlp_dim, config.decoder.width)
        assert measured.peak.flops_per_second == max(rates.values())
        assert measured.peak.bytes_per_second > 1e6


def counted(act):
    """The FLOPs of a call, with attention in operations that PyTorch can count."""
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
        torch.inference_mode(),
    ):
        act()
    return counter.get_total_flops()


def test_stop_tokens_do_not_end_a_forced_length(runners):
    engine_runner, _, work = runners
    config = engine_runner._engine.model.config
    engine_runner._engine.model.config = replace(config, stop_tokens=range(10**6))
    tokens = engine_runner.run_arrays(work(6)).tokens
    assert [len(row) for row in tokens] == [6] * len(tokens)


def test_too_little_memory_for_both_programs_is_an_error(tiny, monkeypatch):
    monkeypatch.setattr(benchmark, "free_bytes", lambda device: 1000)
    with pytest.raises(NoUsableDevice, match="transformers needs") as refused:
        measured(tiny)
    assert "--batch-size" in refused.value.hint


@pytest.mark.slow
def test_it_prints_tables(tiny, capsys, monkeypatch):
    monkeypatch.setattr("pgcli.cli.console.is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["bench", str(tiny), "--batch-size", "2"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].index("program") == shown[1].index("pgcli")
    assert any("4 tokens" in line for line in shown)


def test_json_has_speeds_agreements_stages_and_the_limit(tiny, capsys):
    assert main(["bench", str(tiny), "--batch-size", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["checkpoint"]["path"] == str(tiny)
    for name in ("files", "model"):
        assert [speed["name"] for speed in report[name]["speeds"]] == ["pgcli", "transformers"]
        assert report[name]["agreements"][0]["share"] == 1
    assert len(report["stages"]) == 2
    assert set(report["limit"]) == {"vision", "prefill", "decode"}


def test_bench_and_verify_run_no_code_of_a_checkpoint(tiny, tmp_path, monkeypatch):
    """Tokenizer and config name code, which transformers offers to run."""
    folder = shutil.copytree(tiny, tmp_path / "model")
    ran, questions = tmp_path / "ran", []
    monkeypatch.setattr("builtins.input", lambda *prompt: questions.append(prompt) or "y")
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    for name, auto in (
        ("tokenizer_config.json", {"AutoTokenizer": ["own.Own", None]}),
        ("config.json", {"AutoConfig": "own.Own"}),
    ):
        values = json.loads((folder / name).read_text())
        named = {"auto_map": auto, "model_type": "own"} if name == "config.json" else {}
        named = named or {"auto_map": auto, "tokenizer_class": "Own"}
        (folder / name).write_text(json.dumps(values | named))
    config = read_config(tiny)
    with suppress(ValueError, OSError):  # transformers may reject it, but must not run it
        reference.load_reference(folder, torch.float32, torch.device("cpu"))
    preprocessing = read_preprocessing(tiny, config.vision.resolution)
    hf_model = reference.load_reference(tiny, torch.float32, torch.device("cpu"))
    measured = ReferenceRunner(hf_model, folder, config, preprocessing, vocabulary=300)
    with suppress(ValueError, OSError):
        assert measured._tokenizer is not None
    with suppress(ValueError, OSError):
        reference.prompt_ids(folder, (PROMPT,))
    assert not ran.exists()
    assert not questions
