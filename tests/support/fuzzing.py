"""Fuzz targets: functions of bytes; `python -m tests.support.fuzzing TARGET --seconds 3600`.

A target raises for any result that is not documented: an output, a PgcliError with a known exit
code, or a Fault of the contract. Hypothesis runs each on damaged seeds in `test_fuzz.py`; this
command damages them at random for the given time.
"""

import argparse
import io
import json
import logging
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from pgcli.checkpoints import adapters, safetensors_files
from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.files import weight_files
from pgcli.checkpoints.find import BUILTIN
from pgcli.checkpoints.tokenizer import open_tokenizer
from pgcli.errors import PgcliError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.inputs import Inventory, ReadOptions
from pgcli.output.reader import indexed_rows
from pgcli.parsing import segments
from pgcli.records import COLUMNS, Answer, Box, Item, Mask, Span
from pgcli.rows import RowSchema, json_safe
from tests.support.awkward import broken_files, drawing, encoded, tiff, valid_files
from tests.support.exporting import save
from tests.support.fuzz_coco import coco, some_coco
from tests.support.fuzz_labelstudio import labelstudio, some_labelstudio
from tests.support.fuzz_yolo import some_yolo, yolo

Target = Callable[[bytes], None]

CODES = {"not_an_image", "truncated", "decode_failed", "too_many_pixels", "unsupported_format"}
ROW_CODES = {"path_not_allowed", "url_blocked", "missing", "no_prompt", None}
ROW_CODES |= {"decode_failed", "too_large"}  # from row groups of Parquet
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
ENDINGS = (".jsonl", ".csv", ".tsv", ".parquet")
FILES = ("config.json", "model.safetensors.index.json", "model.safetensors", "tokenizer.json")
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
SLOWEST_SECONDS = 10.0
MOST_BYTES = 2 * 2**30


def images(data: bytes) -> None:
    """Decode the bytes as an image: pixels, or a fault with a decoding error code."""
    image = decode(Item(0, "0", "bytes", data=data), ImageSpec(28), ImageLimits(max_pixels=10**6))
    assert (image.pixels is None) == (image.fault is not None)
    assert image.fault is None or image.fault.code in CODES | {"missing"}, image.fault
    assert image.fault is None or image.fault.message.isprintable(), image.fault


def manifests(data: bytes) -> None:
    """Read a manifest of the kind chosen by the first byte: items, or a documented error."""
    with folder() as root:
        name = f"m{ENDINGS[(data[0] if data else 0) % len(ENDINGS)]}"
        (root / name).write_bytes(data[1:])
        for reading in (
            ReadOptions(),
            ReadOptions(requires_prompts=True),
            ReadOptions(keep=("kept",)),
        ):
            with expected(2, 4):
                for item in Inventory.scan([str(root / name)], reading):
                    assert (item.fault.code if item.fault else None) in ROW_CODES
                    assert item.fault is None or item.path is None
                    values = json_safe([item.id, item.image, dict(item.kept)])
                    json.dumps(values, allow_nan=False).encode()
                    f"{item.id}{item.image}".encode()


def checkpoints(data: bytes) -> None:
    """Read the checkpoint or adapter file that the first byte chooses."""
    which = (data[0] if data else 0) % (len(FILES) + len(ADAPTER))
    with folder() as root, expected(16):
        (root / (FILES + ADAPTER)[which]).write_bytes(data[1:])
        match which:
            case 0:
                assert read_config(root).max_answer_tokens < 2**25
            case 1 | 2:
                for file in weight_files(root):
                    for one in safetensors_files.read_headers(file):
                        assert 0 <= one.offset <= one.offset + one.nbytes <= len(data)
            case 3:
                open_tokenizer(root)
            case 4:
                adapters.read_adapter_config(root).scale_of("a.b.q_proj")
            case _:
                for one in safetensors_files.read_headers(root / ADAPTER[1]):
                    assert one.dtype


def answers(data: bytes) -> None:
    """Parse an answer: boxes are within the image, and saved rows are read back equal."""
    text = data.decode("utf-16-le", "surrogatepass" if len(data) % 2 == 0 else "replace")
    spans = list(make_spans(text, data))
    found = segments(spans, width=64, height=48)
    for one in found:
        box = one.box
        assert 0 <= box.xmin < box.xmax <= 64
        assert 0 <= box.ymin < box.ymax <= 48
    boxes = (*(one.box for one in found), Box(text, 0, 0, 1, 1, 0.5))
    masks = (None, *(Mask(one.codes) for one in found if one.codes))
    row = answer(text, boxes=boxes, masks=masks, kept={"kept": text})
    layout = RowSchema(extras=("masks",), keep=("kept",))
    plain = layout.row(row)
    assert plain["answer"] == text.encode("utf-16-le", "surrogatepass").decode(
        "utf-16-le", "replace"
    )
    with folder() as root:
        for name in ("rows.jsonl", "rows.parquet"):
            save(root / name, row, extras=("masks",), keep=("kept",))
            ((index, read),) = indexed_rows(root / name)
            assert (index, read) == (0, plain), name


def in_folder(target: Callable[[Path, bytes], None]) -> Target:
    """The target in its own folder, which the targets of annotation formats need."""

    def run(data: bytes) -> None:
        with folder() as root:
            target(root, data)

    return run


TARGETS: dict[str, Target] = {
    "images": images,
    "manifests": manifests,
    "checkpoints": checkpoints,
    "answers": answers,
    "coco": in_folder(coco),
    "labelstudio": in_folder(labelstudio),
    "yolo": in_folder(yolo),
}


def damaged(data: bytes, rng: random.Random) -> bytes:
    """The bytes with random changes, deletions, repetitions and insertions."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(changed) + 1)
        end = min(len(changed), at + rng.choice((1, 1, 2, 8, 64)))
        match rng.randrange(6):
            case 0:
                changed[at:end] = rng.randbytes(end - at)
            case 1:
                del changed[at:end]
            case 2:
                changed[at:at] = changed[at:end] * rng.choice((1, 2, 50))
            case 3:
                changed[at:end] = rng.choice(TROUBLE)
            case 4:
                changed[at:at] = rng.choice(TROUBLE)
            case _:
                del changed[rng.randrange(len(changed) + 1) :]
    return bytes(changed)


TROUBLE = (
    *(b"\0", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x80", b"\xed\xa0\x80"),
    *(b"-1", b"NaN", b"1e999", b"9" * 40, b"null", b"{}", b"[]", b'""', b"true", b"\\ud800"),
    *(b"[" * 100, b'{"a":' * 100, b"../", b"file:///", b'"', b",", b"\n", b"\r", b"\xef\xbb\xbf"),
    *(b"\x28\x20", b"\x00\xd8", b"\x00\xdc", b"\x2e\x20"),
)


def watched(target: str, data: bytes) -> None:
    """Run a target once and check its time; the process's own limit bounds its memory."""
    began = time.monotonic()
    TARGETS[target](data)
    took = time.monotonic() - began
    assert took < SLOWEST_SECONDS, f"it took {took:.1f} s"


@contextmanager
def expected(*codes: int) -> Iterator[None]:
    """Allow a block to raise a PgcliError with a message and one of these exit codes."""
    try:
        yield
    except PgcliError as problem:
        if problem.exit_code not in codes or not str(problem):
            raise AssertionError(f"exit code {problem.exit_code}: {problem}") from problem


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder, in memory if the system has /dev/shm."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


def make_spans(text: str, data: bytes) -> Iterator[Span]:
    """Spans of text, locations and mask codes in an order chosen by the bytes."""
    for number, byte in enumerate(data[:200]):
        if byte % 3 == 0:
            yield Span("text", text[number : number + byte % 7])
        elif byte % 3 == 1:
            yield Span("location", "", byte * 4, byte / 255)
        else:
            yield Span("mask", "", byte % 128)


def answer(text: str, **changes: Any) -> Answer:
    """A row with this text in every text column."""
    known: dict[str, Any] = dict.fromkeys(COLUMNS)
    known |= {"index": 0, "task": "segment", "answer": text, "prompt": text, "model": text}
    return Answer(**known | {"id": text, "image": text, "error_message": text} | changes)


def some_images() -> Iterator[bytes]:
    for format_ in FORMATS:
        yield encoded(drawing(), format_)
    for bits, kind in ((8, 2), (12, 1), (16, 1), (16, 2), (32, 1), (32, 3)):
        yield tiff(9, 9, more=((258, 3, 1, bits), (339, 3, 1, kind)), data=bytes(400))
    for data, _ in (broken_files() | valid_files()).values():
        if len(data) < 20_000:
            yield data


def some_manifests() -> Iterator[bytes]:
    line = {
        "image": "a.jpg",
        "id": "x",
        "prompt": "what?",
        "kept": [1, {"a": None}],
        "region": None,
    }
    yield b"\0" + json.dumps(line).encode() + b'\n\n{"image": "../b", "id": 2, "prompt": ""}\n'
    yield b'\0\xef\xbb\xbf{"image": "file:///etc", "region": [1, 2, 3, 4], "kept": 1e9}\r\n'
    table = 'image,id,prompt,kept\n"a,b",1,"two\nlines",é\nhttp://x/y,2,,\n'
    yield b"\1" + table.encode()
    yield b"\2" + table.replace(",", "\t").encode()
    for kind in (["a.jpg", "b.jpg"], [b"x", None], [{"bytes": b"x", "path": "p"}, None]):
        file = io.BytesIO()
        columns = {"image": kind, "prompt": ["a", "b"], "kept": [1.5, None]}
        pq.write_table(pa.table(columns), file, compression="none")
        yield b"\3" + file.getvalue()


def some_checkpoints() -> Iterator[bytes]:
    yield b"\0" + (BUILTIN / "config.json").read_bytes()
    yield b"\1" + json.dumps({"weight_map": {"a": "model.safetensors", "b": "x"}}).encode()
    tensors = {
        name: {"dtype": "F32", "shape": [1, 2], "data_offsets": [8 * n, 8 * n + 8]}
        for n, name in enumerate(("a", "lora_A.weight"))
    }
    header = json.dumps(tensors | {"__metadata__": {"format": "pt"}}).encode()
    for which in (2, 5):
        yield bytes([which]) + struct.pack("<Q", len(header)) + header + bytes(16)
    steps = {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    yield (
        b"\3" + json.dumps({"version": "1.0", "added_tokens": [], "model": model} | steps).encode()
    )
    lora = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "rank_pattern": {"q": 2}}
    yield b"\4" + json.dumps(lora | {"alpha_pattern": {r"layers\.1\..*": 5}}).encode()


def some_answers() -> Iterator[bytes]:
    for text in ("a cat", "\0\x1b[2J\u2028\u202e\u0085", "\U0010ffff猫", "<loc0001> cat ; dog", ""):
        yield text.encode("utf-16-le")
    yield "\ud800 and \udfff".encode("utf-16-le", "surrogatepass")
    yield bytes([1, 4, 103, 103, 0, 0, 0, 1, 4, 103, 103, *range(2, 50, 3), 0, 0])


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "images": some_images,
    "manifests": some_manifests,
    "checkpoints": some_checkpoints,
    "answers": some_answers,
    "coco": some_coco,
    "labelstudio": some_labelstudio,
    "yolo": some_yolo,
}


def mutate(target: str, seconds: float, seed: int) -> int:
    """Run the target on randomly damaged seeds for so many seconds; return the run count."""
    rng, known, runs = random.Random(seed), list(SEEDS[target]()), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = damaged(rng.choice(known), rng)
        try:
            watched(target, data)
        except BaseException:
            found = Path(f"crash-{target}-{seed}-{runs}")
            found.write_bytes(data)
            sys.stderr.write(f"{target}: the failing input is in {found}\n")
            raise
        runs += 1
    return runs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzzing", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    logging.disable()
    runs = mutate(chosen.target, chosen.seconds, chosen.seed)
    sys.stderr.write(f"{chosen.target}: {runs} runs in {chosen.seconds} s, no failures\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
