"""Checkpoint folders: every layout gives the same weights, and errors are named."""

import json
import os
import pickle
import shutil
import socket
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode

import pgcli
from pgcli.checkpoints import weights
from pgcli.checkpoints.config import parse_config, read_config, read_image_spec
from pgcli.checkpoints.families.paligemma import NAMES as PALIGEMMA
from pgcli.checkpoints.families.paligemma import config_values
from pgcli.checkpoints.files import INDEX, total_bytes
from pgcli.checkpoints.find import Checkpoint
from pgcli.checkpoints.preprocessing import Preprocessing, read_preprocessing
from pgcli.checkpoints.save import save
from pgcli.checkpoints.weights import HEAD
from pgcli.engine import loader
from pgcli.errors import InvalidCheckpoint
from pgcli.model.config import DecoderConfig, PaliGemmaConfig, VisionConfig
from tests.support.awkward import drawing, encoded
from tests.support.runs import processor_time_below

NORM = "language_model.model.norm.weight"
EMBEDDING = "language_model.model.embed_tokens.weight"
LM_HEAD = "language_model.lm_head.weight"
QUERY = "vision_tower.vision_model.encoder.layers.1.self_attn.q_proj.bias"


@pytest.fixture(scope="module")
def stored(tiny):
    """The tiny checkpoint's tensors under the names that the Hub's checkpoints have."""
    tensors = load_file(tiny / "model.safetensors")
    return {
        PALIGEMMA.hub_name(PALIGEMMA.canonical(name)): tensor for name, tensor in tensors.items()
    }


@pytest.fixture
def folder(tiny, tmp_path):
    """A copy of the tiny checkpoint without its weights."""
    ignore = shutil.ignore_patterns("*.safetensors")
    return Path(shutil.copytree(tiny, tmp_path / "model", ignore=ignore))


@pytest.fixture
def write(folder, stored):
    """Write the stored tensors as one file, with changes; None removes a tensor."""

    def write(tensors=None, **changes):
        tensors = (stored if tensors is None else tensors) | changes
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        save_file(tensors, folder / "model.safetensors")
        return folder

    return write


@pytest.fixture
def configure(folder):
    """Change the folder's configuration."""

    def configure(name="config.json", **changes):
        file = folder / name
        values = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(values | changes))

    return configure


def loaded(folder, dtype=torch.float32):
    return weights.load_paligemma(folder, read_config(folder), dtype=dtype)


def parameters(model):
    return dict(model.named_parameters())


def assert_same(model, other):
    found, expected = parameters(model), parameters(other)
    assert found.keys() == expected.keys()
    for name, parameter in found.items():
        assert torch.equal(parameter, expected[name]), name


#: `google/...` as published, and its names in versions of transformers.
LAYOUTS = {
    "hub": (),
    "transformers 5": (("vision_tower.vision_model.", "vision_tower."),),
    "transformers 5 as in memory": (
        ("vision_tower.vision_model.", "model.vision_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
        ("language_model.model.", "model.language_model."),
        ("language_model.lm_head.", "lm_head."),
    ),
    "transformers 4.52": (
        ("vision_tower.", "model.vision_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
        ("language_model.model.", "model.language_model."),
        ("language_model.lm_head.", "lm_head."),
    ),
}


class TestNames:
    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("with_head", [False, True])
    def test_every_generation_gives_the_same_weights(self, write, stored, tiny, layout, with_head):
        tensors = {}
        for name, tensor in (
            stored | ({LM_HEAD: stored[EMBEDDING] * 2} if with_head else {})
        ).items():
            for prefix, other in LAYOUTS[layout]:
                if name.startswith(prefix):
                    name = other + name.removeprefix(prefix)
                    break
            tensors[name] = tensor
        model = loaded(write(tensors))
        if with_head:
            assert torch.equal(parameters(model).pop(HEAD), stored[EMBEDDING] * 2)
            model.decoder.lm_head.weight = None
        assert_same(model, loaded(tiny))


class TestFiles:
    def shards(self, folder, stored, count=3):
        names = [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
        home = {tensor: names[n % count] for n, tensor in enumerate(sorted(stored))}
        for file in names:
            save_file({t: stored[t] for t in stored if home[t] == file}, folder / file)
        return home

    def index(self, folder, home, **more):
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": home} | more))

    @pytest.mark.parametrize("with_index", [True, False])
    def test_shards_are_read_as_one_model(self, folder, stored, tiny, with_index):
        home = self.shards(folder, stored)
        if with_index:
            self.index(folder, home)
            (folder / "other.safetensors").write_bytes(b"not read")
        assert_same(loaded(folder), loaded(tiny))
        assert total_bytes(folder) == sum(
            file.stat().st_size for file in folder.glob("model*.safetensors")
        )

    def test_links_are_followed_as_in_the_hub_cache(self, folder, tiny):
        (folder / "model.safetensors").symlink_to(tiny / "model.safetensors")
        assert_same(loaded(folder), loaded(tiny))

    @pytest.mark.parametrize(
        "file",
        [
            "../secret.safetensors",
            "/etc/passwd",
            "sub/model.safetensors",
            "..\\model.safetensors",
            "model.bin",
            "model.safetensors\n",
            "",
            7,
        ],
    )
    def test_an_index_cannot_point_out_of_the_folder(self, folder, stored, refusal, file):
        home = self.shards(folder, stored)
        save_file(stored, folder.parent / "secret.safetensors")
        self.index(folder, home | {NORM: file})
        assert f"maps {NORM} to" in refusal()

    def test_index_of_another_save_is_ignored(self, write, stored, tiny):
        """As in transformers, which prefers model.safetensors."""
        folder = write()
        save_file({NORM: stored[NORM] + 1}, folder / "model-00001-of-00001.safetensors")
        self.index(folder, {NORM: "model-00001-of-00001.safetensors"})
        assert_same(loaded(folder), loaded(tiny))

    @pytest.mark.parametrize(
        "file",
        ["model.safetensors", "config.json", "tokenizer.json", INDEX, "generation_config.json"],
    )
    def test_git_lfs_pointers_are_named_with_their_remedy(self, write, folder, stored, file):
        write()
        if file == INDEX:
            self.shards(folder, stored)
            (folder / "model.safetensors").unlink()
        (folder / file).write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132735\n"
        )
        with pytest.raises(InvalidCheckpoint, match="is a Git LFS pointer") as caught:
            loader.open_engine(Checkpoint("model", folder), device="cpu", batch_size=1)
        assert "git lfs pull" in caught.value.hint

    def test_a_missing_shard_is_named(self, folder, stored, refusal):
        home = self.shards(folder, stored)
        self.index(folder, home)
        (folder / home[NORM]).unlink()
        assert f"has no {home[NORM]}, which its model.safetensors.index.json names" in refusal()

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "\xff", "[" * 9999],
    )
    def test_a_broken_index_is_named(self, folder, stored, refusal, text):
        self.shards(folder, stored)
        (folder / INDEX).write_text(text, encoding="latin-1")
        assert INDEX in refusal()

    @pytest.mark.parametrize("name", ["notes.txt", "model.pt", "last.ckpt"])
    def test_a_folder_without_weights_is_an_error(self, folder, refusal, name):
        (folder / name).write_bytes(pickle.dumps({}))
        message = refusal()
        assert "has no safetensors file" in message
        assert (f"{name} is a pickle" in message) == (name != "notes.txt")

    def test_a_pickle_next_to_safetensors_is_ignored(self, write, tmp_path):
        class Bomb:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "exploded"),)

        (write() / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
        loaded(tmp_path / "model")
        assert not (tmp_path / "exploded").exists()


class OnlyShapes(TorchDispatchMode):
    """Raises for every tensor that allocates memory."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        assert not isinstance(made, torch.Tensor) or made.is_meta, "memory was taken"
        return made


@pytest.fixture
def refusal(folder, monkeypatch):
    """The error message of loading the folder, raised before memory is allocated."""

    def nothing(tensor):
        raise AssertionError(f"{tensor.name} was read")

    monkeypatch.setattr(weights, "read_into", nothing)

    def refusal():
        with OnlyShapes(), pytest.raises(InvalidCheckpoint) as refused:
            loader.open_engine(Checkpoint("model", folder), device="cpu", batch_size=1)
        assert refused.value.exit_code == 16
        return str(refused.value)

    return refusal


class TestStoredDtypes:
    @pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
    def test_any_stored_dtype_is_read_into_any_dtype(self, write, stored, kept, wanted):
        model = loaded(write({name: t.to(kept) for name, t in stored.items()}), dtype=wanted)
        found = parameters(model)
        assert {parameter.dtype for parameter in found.values()} == {wanted}
        assert torch.equal(found["decoder.norm.weight"], stored[NORM].to(kept).to(wanted))

    @pytest.mark.parametrize(
        "dtype", [torch.int8, torch.int64, torch.bool, torch.float64, torch.float8_e4m3fn]
    )
    @pytest.mark.parametrize("name", [NORM, QUERY, EMBEDDING, LM_HEAD])
    def test_other_dtypes_are_errors(self, write, stored, refusal, dtype, name):
        tensor = stored[EMBEDDING] if name == LM_HEAD else stored[name]
        write(**{name: tensor.to(dtype)})
        assert f"{name} is stored as" in refusal()

    def test_a_tensor_read_in_chunks_is_complete(self, write, stored, tiny, monkeypatch):
        """As the embedding of every real checkpoint if its dtype is converted."""
        monkeypatch.setattr(
            "pgcli.checkpoints.safetensors_files.CHUNK_BYTES", 70
        )  # no row is a multiple
        model = loaded(write({name: t.bfloat16() for name, t in stored.items()}))
        assert_same(model, loaded(tiny, torch.bfloat16).float())


class TestHead:
    def test_head_equal_to_the_embedding_is_tied(self, write, stored, tiny):
        model = loaded(write(**{LM_HEAD: stored[EMBEDDING].clone()}))
        assert model.config.tied
        assert model.decoder.lm_head.weight is None
        assert_same(model, loaded(tiny))

    @pytest.mark.parametrize("tied", [True, False])
    def test_different_head_is_used_regardless_of_the_config(self, write, stored, configure, tied):
        head = stored[EMBEDDING].clone()
        head[7, 3] += 1
        configure(tie_word_embeddings=tied)
        model = loaded(write(**{LM_HEAD: head}))
        assert not model.config.tied
        assert torch.equal(model.decoder.lm_head.weight, head)
        hidden = torch.ones(1, head.shape[1])
        assert torch.equal(model.decoder.logits(hidden), hidden @ head.T)

    def test_untied_config_requires_a_head(self, write, configure, refusal):
        configure(tie_word_embeddings=False)
        write()
        assert f"{LM_HEAD} is missing" in refusal()


def test_embeddings_without_a_token_are_never_generated(tiny, write, stored, configure):
    padding = torch.randn(64, stored[EMBEDDING].shape[1]) * 50  # would have the highest logits
    folder = write(**{EMBEDDING: torch.cat([stored[EMBEDDING], padding])})
    text = json.loads((folder / "config.json").read_text())["text_config"]
    configure(text_config=text | {"vocab_size": text["vocab_size"] + 64})
    shape = encoded(drawing(40, 30), "png")
    (plain,), (padded,) = (
        pgcli.load(one, device="cpu", batch_size=1).ocr(shape, max_new_tokens=6)
        for one in (tiny, folder)
    )
    assert (padded.answer, padded.tokens) == (plain.answer, plain.tokens)
    assert padded.logprob == pytest.approx(plain.logprob)


def test_tokens_without_an_embedding_are_an_error(write, stored, configure, refusal):
    folder = write(**{EMBEDDING: stored[EMBEDDING][:-1].clone()})
    text = json.loads((folder / "config.json").read_text())["text_config"]
    configure(text_config=text | {"vocab_size": text["vocab_size"] - 1})
    assert f"{text['vocab_size']} tokens, the model {text['vocab_size'] - 1}" in refusal()


AGAIN = "model.language_model.norm.weight"
UP = "language_model.model.layers.0.mlp.up_proj.weight"
PROJECTOR = "multi_modal_projector.linear.weight"
UNKNOWN = [
    "language_model.model.layers.3.input_layernorm.weight",
    "language_model.model.layers.0.self_attn.q_proj.bias",
    "vision_tower.vision_model.head.probe",
    "language_model.model.layers.0.self_attn.qkv_proj.lora_A.weight",
    "optimizer.state",
    "",
    "a\nb",
]
#: Changes to stored tensors (None removes one), and the message about each.
REFUSED = [
    ({LM_HEAD: lambda stored: stored[EMBEDDING][:-1]}, f"{LM_HEAD} has the shape"),
    ({LM_HEAD: lambda stored: stored[EMBEDDING], EMBEDDING: None}, f"{EMBEDDING} is missing"),
    ({AGAIN: lambda stored: stored[NORM]}, "stored twice"),
    (
        {UP: lambda stored: stored[UP].T.contiguous()},
        f"{UP} has the shape (48, 96); config.json implies (96",
    ),
    *(
        ({name: lambda _: torch.zeros(16)}, f"{name} in model.safetensors is not a tensor")
        for name in UNKNOWN
    ),
    *(
        ({name: lambda _, shape=shape: torch.zeros(shape)}, f"{name} has the shape {shape}")
        for name in (NORM, QUERY, EMBEDDING, PROJECTOR)
        for shape in ((1,), (9, 9, 1), (49,), (), (0,))
    ),
]


class TestTensors:
    def test_each_missing_tensor_is_named(self, write, stored, refusal):
        for name in stored:
            if ".layers.0." in name or ".layers.2." in name:
                continue
            write(**{name: None})
            assert f"{name} is missing" in refusal()

    @pytest.mark.parametrize(("changes", "message"), REFUSED)
    def test_tensors_that_do_not_fit_the_model_are_named(
        self, write, stored, refusal, changes, message
    ):
        made = {name: make and make(stored).clone() for name, make in changes.items()}
        write(**made)
        assert message in refusal()

    def test_a_tensor_stored_in_two_files_is_named(self, write, folder, stored, refusal):
        write()
        (folder / "model.safetensors").rename(folder / "first.safetensors")
        save_file({NORM: stored[NORM]}, folder / "more.safetensors")
        assert f"{NORM} is stored twice" in refusal()

    def test_other_safetensors_files_are_ignored(self, write, folder, stored):
        """Such as an adapter, or weights in another dtype."""
        write()
        size = total_bytes(folder)
        save_file({NORM: stored[NORM] + 1}, folder / "adapter_model.safetensors")
        assert total_bytes(folder) == size
        assert torch.equal(loaded(folder).decoder.norm.weight, stored[NORM])

    def test_a_header_of_a_million_tensors_is_not_parsed(self, folder, refusal):
        entries = b",".join(b'"t%d":{}' % n for n in range(10**6))
        (folder / "model.safetensors").write_bytes(safetensors_file(b"{" + entries + b"}"))
        with processor_time_below(80):
            assert "model.safetensors has a header of" in refusal()

    @pytest.mark.parametrize(
        ("name", "shape"), [("x" * 10**6, (1,)), (NORM, (1,) * 10**5)], ids=["name", "shape"]
    )
    def test_a_long_tensor_name_is_abbreviated(self, folder, refusal, name, shape):
        (folder / "model.safetensors").write_bytes(
            safetensors_file({name: tensor(0, 4, shape=shape)}, b"\0" * 4)
        )
        assert "has an unknown tensor" in (message := refusal())
        assert len(message) < 500


def safetensors_file(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def tensor(start, end, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


class TestBrokenFiles:
    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"<html><body>404</body></html>",
            struct.pack("<Q", 2**63) + b"{}",
            safetensors_file(b"not json"),
            safetensors_file([]),
            safetensors_file(b'{"a":' * 5000),
            safetensors_file({"a": tensor(0, 8)}, b"\0" * 8),
            safetensors_file({"a": tensor(0, 4), "b": tensor(0, 4)}, b"\0" * 4),
            safetensors_file({"a": tensor(0, 4), "b": tensor(8, 12)}, b"\0" * 12),
            safetensors_file({"a": tensor(0, 4)}, b"\0" * 8),
            safetensors_file({"a": tensor(4, 0)}, b"\0" * 4),
            safetensors_file({"a": tensor(0, 4, dtype="F77")}, b"\0" * 4),
            safetensors_file({"a": tensor(0, 4, shape=(2**62, 2**62))}, b"\0" * 4),
            safetensors_file({"a": tensor(0, 4, shape=(-1,))}, b"\0" * 4),
        ],
        ids=range(14),
    )
    def test_a_file_that_is_not_safetensors_is_named(self, folder, refusal, data):
        (folder / "model.safetensors").write_bytes(data)
        assert "model.safetensors is not a valid safetensors file" in refusal()

    @pytest.mark.parametrize("keep", [-1, -1000, 2000, 9])
    def test_a_truncated_file_is_named(self, write, refusal, keep):
        file = write() / "model.safetensors"
        file.write_bytes(file.read_bytes()[:keep])
        assert "model.safetensors is not a valid safetensors file" in refusal()

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
    def test_a_missing_file_is_named(self, write, refusal, name):
        (write() / name).unlink()
        assert f"has no {name}" in refusal()

    @pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"x"', "\xff", "[" * 99_999, "{}"])
    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
    def test_a_broken_file_is_named(self, write, refusal, name, text):
        (write() / name).write_text(text, encoding="latin-1")
        assert name in refusal()

    def test_a_huge_configuration_is_not_read(self, write, refusal):
        with open(write() / "config.json", "wb") as file:
            file.truncate(2**40)
        assert "config.json is larger than" in refusal()

    def test_a_decoder_without_room_for_an_answer_is_an_error(
        self, folder, write, configure, refusal
    ):
        write()
        text = json.loads((folder / "config.json").read_text())["text_config"]
        configure(text_config=text | {"max_position_embeddings": 5})
        assert "max_position_embeddings is 5, which leaves no room" in refusal()


class TestPreprocessing:
    def read(self, folder):
        return read_preprocessing(folder, 56)

    def test_published_preprocessing_is_read_and_the_default(self, folder):
        published = Preprocessing(3, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        assert self.read(folder) == published
        (folder / "preprocessor_config.json").unlink()
        assert self.read(folder) == published
        (folder / "processor_config.json").write_text('{"image_seq_length": 16}')
        assert self.read(folder) == published

    def test_processor_config_takes_precedence(self, folder, configure):
        configure("processor_config.json", image_processor={"resample": 2})
        assert self.read(folder).resample == 2

    def test_images_are_decoded_for_the_model_before_it_is_loaded(self, write, configure):
        folder = write()
        for resample in (3, 2):
            configure("preprocessor_config.json", resample=resample)
            spec = read_image_spec(folder)
            assert spec == loader.open_engine(Checkpoint("tiny", folder), device="cpu").spec
            assert spec.resample == resample

    def test_nulls_and_unused_settings_are_ignored(self, folder, configure):
        configure(
            "preprocessor_config.json",
            resample=None,
            do_convert_rgb=None,
            do_center_crop=False,
            crop_size={"height": 9, "width": 9},
            size={"height": 56, "width": 56, "longest_edge": None},
            image_mean=None,
        )
        assert self.read(folder) == Preprocessing()

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("do_resize", False),
            ("do_normalize", False),
            ("do_center_crop", True),
            ("resample", [3]),
            ("rescale_factor", 1 / 127.5),
            ("image_mean", [0.5, 0.5, 10**400]),
            ("image_mean", ["0.5"] * 3),
            ("image_std", [1, 1, 0]),
        ],
    )
    def test_unsupported_setting_is_named(self, folder, configure, write, refusal, key, value):
        write()
        configure("preprocessor_config.json", **{key: value})
        assert f"preprocessor_config.json: {key} = " in refusal()

    @pytest.mark.parametrize(
        ("size", "shown"),
        [
            ({"height": 224, "width": 224}, "224 x 224"),
            ({"height": [56], "width": [56]}, "[56] x [56]"),
            (56, "{'shortest_edge': 56}"),
        ],
    )
    def test_processor_of_another_resolution_names_both_resolutions(
        self, folder, configure, write, refusal, size, shown
    ):
        write()
        configure("preprocessor_config.json", size=size)
        message = refusal()
        assert f"preprocessor_config.json: size is {shown}" in message
        assert message.endswith("but the model's resolution is 56 x 56")


def test_code_named_by_a_checkpoint_is_not_imported(write, configure, monkeypatch):
    folder = write()
    (folder / "evil.py").write_text("import os; os.mkdir(__file__ + '.ran')")
    hostile = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    configure(
        auto_map=hostile,
        architectures=["evil.Model"],
        _attn_implementation_internal="evil/kernel",
        _name_or_path="evil/model",
    )
    configure("tokenizer_config.json", auto_map=hostile, tokenizer_class="evil.Tokenizer")
    configure("preprocessor_config.json", auto_map=hostile, image_processor_type="evil.Processor")
    monkeypatch.chdir(folder)

    def unplugged(*args, **kwargs):
        raise AssertionError("loading a folder reached for the network")

    monkeypatch.setattr(socket, "socket", unplugged)
    loader.open_engine(Checkpoint("model", folder), device="cpu", batch_size=1)
    assert "evil" not in sys.modules
    assert not (folder / "evil.py.ran").exists()


@pytest.mark.parametrize("head", [None, "another"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_model_has_the_hub_layout_and_is_read_back(write, stored, tmp_path, head, dtype):
    folder = write(**({LM_HEAD: stored[EMBEDDING] + 1} if head else {}))
    model = loaded(folder)
    save(model, tmp_path / "new" / "copy", dtype=dtype)
    names = load_file(tmp_path / "new" / "copy" / "model.safetensors").keys()
    assert names == {*stored, *([LM_HEAD] if head else [])}
    again = loaded(tmp_path / "new" / "copy")
    assert again.config == model.config
    assert_same(again, model.to(dtype).to(torch.float32))


@pytest.mark.parametrize("generation", [1, 2])
def test_every_size_that_is_saved_is_read_back(generation):
    """No value is a default, which would be read back even if it were not saved."""
    vision = VisionConfig(32, 2, 64, 2, 14, 56, norm_eps=1e-5)
    second = {
        "query_pre_attn_scalar": 24,
        "attn_softcap": 5.0,
        "final_softcap": 7.0,
        "sliding_window": 6,
        "sliding_layers": (False, True, True),
        "post_norms": True,
    }
    decoder = DecoderConfig(
        48, 3, 96, 4, 2, 16, 300, norm_eps=1e-4, rope_theta=5e5, max_positions=99,
        **(second if generation == 2 else {}),
    )  # fmt: skip
    config = PaliGemmaConfig(vision, decoder, image_token_id=299, stop_tokens=(3, 107), tied=False)
    values = config_values(config)
    assert parse_config(values) == config
    theirs = transformers.PaliGemmaConfig(**values)
    assert theirs.text_config.rope_parameters["rope_theta"] == decoder.rope_theta
    assert theirs.vision_config.layer_norm_eps == vision.norm_eps
    plain = replace(config, tied=True, stop_tokens=(3,))
    assert parse_config(config_values(plain)) == plain
    if generation == 2:
        bare = replace(decoder, attn_softcap=None, final_softcap=None, sliding_window=None)
        unbound = replace(config, decoder=bare)
        assert parse_config(config_values(unbound)) == unbound
