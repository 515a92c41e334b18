"""Tests that sources yield items with the right ids, paths and faults."""

import csv
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgcli.errors import ManifestError, NoInputError, UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import NameFilter
from pgcli.inputs.paths import display_path
from pgcli.records import Fault
from pgcli.stores.files import parse_path
from tests.inputs.items import faults, ids, items, reloaded, touch
from tests.support.awkward import drawing, encoded, unprivileged
from tests.support.runs import processor_time_below

ADDRESSES = ["http://x/a.jpg", "s3://b/k", "HTTPS://x"]
ADDRESSES += ["http://169.254.169.254/latest/meta-data/", "gs://b/k", "hf://datasets/x", "ftp://x"]
OUTSIDE = ReadOptions(allow_outside_root=True)


def json_lines(*rows: dict[str, Any], name: str = "m.jsonl") -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def parquet(name: str = "m.parquet", **columns: Any) -> str:
    pq.write_table(pa.table(columns), name)
    return name


class TestFolders:
    def test_images_are_in_code_point_order_of_relative_paths(self):
        names = ["b.jpg", "a/z.png", "a.x/q.gif", "a/b/c.JPEG", "B.tif", "é.webp", "a-.bmp"]
        touch(*(f"imgs/{name}" for name in names))
        assert ids("imgs") == sorted(names)
        assert [item.image for item in items("imgs/")] == [f"imgs/{name}" for name in sorted(names)]
        assert ids(".") == sorted(f"imgs/{name}" for name in names)

    def test_hidden_files_are_skipped_and_others_counted(self):
        touch("i/a.jpg", "i/.b.jpg", "i/.git/c.jpg", "i/notes.txt", "i/x.TXT", "i/none")
        source = Inventory.scan(["i"])
        assert [item.id for item in source] == ["a.jpg"]
        assert source.ignored == {".txt": 2, "(none)": 1}

    def test_cycles_of_links_are_walked_once(self):
        touch("i/sub/a.jpg")
        Path("i/sub/up").symlink_to("..")
        Path("i/self").symlink_to(".")
        Path("i/x.jpg").symlink_to("y.jpg")
        Path("i/y.jpg").symlink_to("x.jpg")
        for reading in (ReadOptions(), OUTSIDE):
            assert ids("i", reading=reading) == ["sub/a.jpg", "x.jpg", "y.jpg"]

    def test_link_outside_the_folder_needs_permission(self):
        touch("out/a.jpg", "i/b.jpg")
        Path("i/in.jpg").symlink_to("b.jpg")
        Path("i/out.jpg").symlink_to("../out/a.jpg")
        assert faults("i") == [None, None, "path_not_allowed"]
        assert "--allow-outside-root" in items("i")[2].fault.message
        assert faults("i", reading=OUTSIDE) == [None, None, None]

    def test_linked_folder_outside_is_walked_once_if_allowed(self):
        touch("out/sub/a.jpg", "i/b.jpg")
        Path("i/l1").symlink_to("../out")
        Path("i/l2").symlink_to("../out")
        Path("out/back").symlink_to(".")
        Path("out/in").symlink_to("../i")
        assert ids("i") == ["b.jpg"]
        assert ids("i", reading=OUTSIDE) == ["b.jpg", "l1/sub/a.jpg"]

    def test_folder_without_images_reports_skipped_files(self):
        touch("i/rows.jsonl", "i/notes.txt")
        with pytest.raises(NoInputError) as caught:
            Inventory.scan(["i"])
        assert "1 .jsonl" in caught.value.hint
        assert "name the file itself" in caught.value.hint

    def test_unreadable_folder_is_an_error_row(self, working_folder):
        touch("i/a.jpg", "i/locked/b.jpg")
        working_folder.chmod(0o755)
        Path("i/locked").chmod(0)
        with unprivileged():
            assert faults("i") == [None, "permission_denied"]
        Path("i/locked").chmod(0o700)


class TestFilesAndGlobs:
    def test_glob_finds_images_and_manifests_sorted(self):
        touch("i/b.jpg", "i/sub/a.png", "i/sub/.h.png", "i/n.txt")
        json_lines({"image": "b.jpg", "id": "mine"}, name="i/m.jsonl")
        assert ids("i/**/*.png") == ["i/sub/a.png"]
        source = Inventory.scan(["i/*"])
        assert [item.id for item in source] == ["i/b.jpg", "mine"]
        assert source.ignored == {".txt": 1}

    def test_glob_skips_the_output_of_runs(self):
        touch("d/a.jpg", "d/rows.jsonl", "d/rows.jsonl.pgcli/waiting.jsonl", "d/run/p.parquet")
        touch("d/run.pgcli/run.json")
        json_lines({"image": "b.jpg"}, name="d/m.jsonl")
        assert ids("d/*") == ids("d/**") == ids("d/**/*") == ["d/a.jpg", "b.jpg"]

    def test_two_stars_do_not_follow_links_to_folders(self):
        touch("i/sub/a.jpg")
        Path("i/sub/up").symlink_to("..")
        Path("i/sub/too").symlink_to("..")
        assert ids("i/**/*.jpg") == ["i/sub/a.jpg"]
        assert ids("i/**") == ids("**/*.jpg") == ids("**/**/a.*") == ["i/sub/a.jpg"]

    @pytest.mark.parametrize(
        ("name", "word"),
        [
            ("gone.jpg", "does not exist"),
            ("a.txt", "neither"),
            ("a.tar", "tar"),
            ("a.tar.gz", "tar"),
            ("s3://bucket/x", "s3"),
            ("gs://bucket/x", "gs"),
            ("hf://datasets/x", "hf"),
            ("https://x.y/a.jpg", "https"),
        ],
    )
    def test_unsupported_source_is_rejected_by_name(self, name, word):
        touch("a.txt", "a.tar", "a.tar.gz")
        with pytest.raises(UsageError, match=word) as caught:
            Inventory.scan([name])
        assert caught.value.hint

    def test_columns_of_a_folder_are_rejected(self):
        touch("i/a.jpg")
        for reading in (
            ReadOptions(keep=("x",)),
            ReadOptions(fields=("x",)),
            ReadOptions(requires_prompts=True),
        ):
            with pytest.raises(UsageError):
                Inventory.scan(["i"], reading)


OUT = ["../a.jpg", "/etc/passwd", "x/../../a.jpg", "a\0.jpg"]
OUT += ["out/a.jpg", "file:///etc/passwd", "file:%2e%2e/a.jpg", ".."]


class TestManifests:
    @pytest.mark.parametrize("path", OUT)
    def test_path_outside_the_manifest_folder_is_not_opened(self, path):
        touch("elsewhere/a.jpg", "d/in.jpg")
        Path("d/out").symlink_to("../elsewhere")
        name = json_lines({"image": path}, {"image": "in.jpg"}, name="d/m.jsonl")
        assert faults(name) == ["path_not_allowed", None]
        assert items(name)[0].path is None
        if "\0" not in path:
            assert faults(name, reading=OUTSIDE) == [None, None]

    @pytest.mark.parametrize("url", ADDRESSES)
    def test_urls_in_rows_are_not_fetched(self, url):
        assert faults(json_lines({"image": url}), reading=OUTSIDE) == ["url_blocked"]

    def test_row_without_an_image_is_an_error_row(self):
        name = json_lines({"image": None}, {"image": ""}, {"id": "n"}, {"image": "a.jpg"})
        assert faults(name) == ["missing", "missing", "missing", None]
        assert ids(name) == ["0", "1", "n", "a.jpg"]

    @pytest.mark.parametrize("type_", [pa.binary(), pa.large_binary(), pa.binary_view()])
    def test_image_bytes_are_the_item_data(self, type_):
        name = parquet(image=pa.array([b"abc", None, b""], type_))
        first, second, third = items(name)
        assert (first.data, first.id, first.image, first.path) == (b"abc", "0", name, None)
        assert second.fault == third.fault is not None

    def test_images_of_the_datasets_library_are_read(self):
        rows = [
            {"bytes": b"x", "path": "../label.png"},
            {"bytes": None, "path": "a.png"},
            {"bytes": b"y", "path": None},
            None,
        ]
        found = items(parquet(image=rows))
        assert [item.id for item in found] == ["../label.png", "a.png", "2", "3"]
        assert [item.image for item in found] == ["../label.png", "a.png", *["m.parquet"] * 2]
        assert [item.data for item in found] == [b"x", None, b"y", None]
        assert [item.path for item in found] == [None, "a.png", None, None]

    def test_prompts_are_read_only_if_required(self):
        name = json_lines({"image": "a.jpg", "prompt": "x"}, {"image": "b.jpg"})
        assert Inventory.scan([name]).has_prompts
        assert items(name)[0].prompts == ()
        first, second = items(name, reading=ReadOptions(requires_prompts=True))
        assert (first.prompts, first.fault) == (("x",), None)
        assert (second.prompts, second.fault) == (
            ("",),
            Fault("no_prompt", "The row has no prompt in 'prompt'."),
        )

    def test_prompts_are_in_the_columns_of_training_too(self, set_stdin):
        asking = ReadOptions(requires_prompts=True)
        rows = [{"image": "a", "prefix": "caption en", "suffix": "x"}]
        rows += [{"image": "b", "prefix": "", "prompt": "what?"}]
        rows += [{"image": "c", "prefix": "y", "prompt": "asked"}]
        rows += [{"image": "d", "prefix": "y", "prompt": None}]
        expected = [("caption en",), ("what?",), ("asked",), ("y",)]
        name = json_lines(*rows)
        assert [item.prompts for item in items(name, reading=asking)] == expected
        set_stdin(Path(name).read_bytes())
        assert [item.prompts for item in items("-", reading=asking)] == expected
        table = parquet(image=["a"], prefix=["caption en"])
        assert [item.prompts for item in items(table, reading=asking)] == [("caption en",)]
        with pytest.raises(UsageError, match="has no column"):
            Inventory.scan([table], ReadOptions(requires_prompts=True, prompt_column="question"))

    def test_null_in_a_column_that_fills_prompts_fails_its_row(self):
        name = json_lines({"image": "a", "c": "x"}, {"image": "b", "c": None}, {"image": "c"})
        found = items(name, reading=ReadOptions(fields=("c",)))
        assert [item.fields for item in found] == [{"c": "x"}, {"c": None}, {"c": None}]
        assert [item.fault.code if item.fault else None for item in found] == [
            None,
            "no_prompt",
            "no_prompt",
        ]
        assert faults(name, reading=ReadOptions(fields=("c",), allows_nulls=True)) == [None] * 3

    def test_id_given_twice_anywhere_is_rejected_with_both_places(self):
        one = json_lines({"image": "a", "id": "x"}, {"image": "b", "id": "y"})
        two = parquet("t.parquet", image=["a", "b"], id=["z", "y"])
        message = "the id 'y' occurs twice: m.jsonl, line 2 and t.parquet, row 2"
        with pytest.raises(ManifestError, match=message):
            Inventory.scan([one, two])
        with pytest.raises(ManifestError, match=r"m.jsonl, line 1 and m.jsonl, line 1"):
            Inventory.scan([one, one])
        name = parquet("p.parquet", image=["a"] * 3, id=["x", "y", "x"])
        with pytest.raises(ManifestError, match=r"p.parquet, row 1 and p.parquet, row 3"):
            Inventory.scan([name])
        assert len(items(one, two, reading=ReadOptions(repeats_ids=True))) == 4

    @pytest.mark.parametrize(
        ("sources", "positions"),
        [
            (("i", "i"), "i and i"),
            (("i", "i/*.jpg"), r"i and i/\*\.jpg"),
            (("i/a.jpg", "i/b.jpg", "i/a.jpg"), r"i/a\.jpg and i/a\.jpg"),
            (("i/*", "i/m.jsonl"), r"i/\* and i/m\.jsonl, line 1"),
            (("-", "i", "i/*.jpg"), r"i and i/\*\.jpg"),
        ],
    )
    def test_file_named_twice_is_rejected_with_both_sources(self, sources, positions, set_stdin):
        touch("i/a.jpg", "i/b.jpg")
        json_lines({"image": "b.jpg", "id": "i/a.jpg"}, name="i/m.jsonl")
        set_stdin(b"i/a.jpg\n")
        with pytest.raises(ManifestError, match=rf"'i/a\.jpg' occurs twice: {positions}$"):
            Inventory.scan(sources)
        set_stdin(b"i/a.jpg\n")
        assert items(*sources, reading=ReadOptions(repeats_ids=True))

    def test_id_of_spooled_lines_and_of_a_manifest_is_rejected(self, set_stdin):
        name = json_lines({"image": "a", "id": 1})
        for lines in (b'b\n{"image": "b", "id": "1"}\n', b'{"image": "b", "id": 1}\n' * 2):
            set_stdin(lines)
            with pytest.raises(ManifestError, match="'1' occurs twice: standard input, line"):
                Inventory.scan(["-", name], ReadOptions(spool=True))

    @pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
    def test_missing_ids_of_pandas_are_no_ids(self, kind):
        ids_ = {"numbers": [1, np.nan, 3], "texts": ["x", None, np.nan]}
        ids_ |= {"times": [pandas.Timestamp(0), pandas.NaT, pandas.Timestamp(10**9)]}
        frame = pandas.DataFrame({"image": ["a.png", "b.png", "c.png"], **ids_})
        frame["nullable"] = pandas.array([7, None, 9], "Int64")
        if kind == "parquet":
            frame.to_parquet("m.parquet")
        elif kind == "csv":
            frame.to_csv("m.csv", index=False)
        else:
            frame.to_json("m.jsonl", orient="records", lines=True, date_format="iso")
        named = {name: ids(f"m.{kind}", reading=ReadOptions(id_column=name)) for name in frame}
        # text in CSV stays as it is written
        assert named["numbers"] == (
            ["1.0", "b.png", "3.0"] if kind == "csv" else ["1", "b.png", "3"]
        )
        assert named["texts"] == ["x", "b.png", "c.png"]
        assert named["times"][1] == "b.png"
        assert named["nullable"] == ["7", "b.png", "9"]

    def test_unknown_column_of_ids_is_rejected_with_the_existing_columns(self):
        for name in (parquet(image=["a"], size=[3]), json_lines({"image": "a", "size": 3})):
            with pytest.raises(UsageError, match="nope") as caught:
                Inventory.scan([name], ReadOptions(id_column="nope"))
            assert "image, size" in caught.value.hint

    def test_equal_hashes_of_different_ids_are_not_repeats(self, monkeypatch):
        for module in ("tables", "inventory", "scan"):
            monkeypatch.setattr(f"pgcli.inputs.{module}.hash", len, raising=False)
        rows = [{"image": "a.jpg", "id": str(n)} for n in range(100)]
        assert len(items(json_lines(*rows))) == 100
        with pytest.raises(ManifestError, match="'7' occurs twice"):
            Inventory.scan([json_lines(*rows, {"image": "a.jpg", "id": 7})])

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            (b'{"image": "a.jpg"}\n{"image":\n', "line 2"),
            (b'{"image": "a.jpg"}\n\n["a.jpg"]\n', "line 3"),
            (b'{"image": "a\0.jpg"}\n', "NUL"),
            (b'{"image": "a.jpg", "image": "b.jpg"}\n', "duplicate key"),
            (b'{"image": "\\ud800.jpg"}\n', "surrogate"),
            (b'{"image": 5}\n', "line 1"),
            (b'{"image": "a.jpg", "id": true}\n', "line 1"),
            (b'{"image": "a\xff.jpg"}\n', "UTF-8"),
            ('{"image": "a.jpg"}\n'.encode("utf-16"), "line 1"),
            ('{"image": "a.jpg"}\n'.encode("utf-16-le"), "line 1.*NUL"),
            ('{"image": "a.jpg"}\n'.encode("utf-32"), "line 1"),
            (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "line 1"),
            (b'{"image": "a.jpg", "a": ' + b"[" * 64 + b"]" * 64 + b"}\n", "line 1.*deeply"),
            (b'{"image": "a.jpg", "a": ' + b'{"b":' * 900 + b"1" + b"}" * 901, "line 1.*deeply"),
            (b'{"image": ' + b"9" * 5000 + b"}\n", "line 1: it has a number of too many digits$"),
        ],
    )
    def test_broken_line_is_named(self, text, word):
        Path("m.jsonl").write_bytes(text)
        with pytest.raises(ManifestError, match=word):
            Inventory.scan(["m.jsonl"])

    @pytest.mark.parametrize(
        ("name", "lines"),
        [
            ("m.jsonl", ['{"image": "a.jpg", "id": "x"}', "", '{"image": "b.jpg", "id": "y"}']),
            ("m.csv", ['"image","id"', '"a.jpg","x"', "", 'b.jpg,"y"']),
            ("m.csv", ['id,"image"', 'x,"a.jpg"', 'y,"b.jpg"']),
            ("m.tsv", ["image\tid", "a.jpg\tx", "b.jpg\ty"]),
        ],
    )
    @pytest.mark.parametrize("marks", ["\ufeff", "\ufeff\ufeff"])
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    def test_byte_order_marks_are_not_part_of_lines(self, name, lines, marks, end):
        """Also not those of lines in the middle, where files were concatenated."""
        Path(name).write_bytes("".join(f"{marks}{line}{end}" for line in lines).encode())
        found = items(name)
        assert [(item.id, item.image) for item in found] == [("x", "a.jpg"), ("y", "b.jpg")]

    @pytest.mark.slow
    def test_row_of_endless_lines_is_not_read_to_its_end(self):
        with open("m.csv", "wb") as file:
            file.write(b'image\n"')
            for _ in range(40):
                file.write(b'x","\n' * 2**17)
        with pytest.raises(ManifestError, match="the row is longer than 16 MiB"):
            Inventory.scan(["m.csv"])

    def test_endless_line_is_not_read_to_its_end(self):
        with open("m.jsonl", "wb") as file:
            file.truncate(2**33)
        with pytest.raises(ManifestError, match=r"line 1.*16 MiB"):
            Inventory.scan(["m.jsonl"])

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            (b"", "has no rows"),
            (b"image,id\na.jpg,1\nb.jpg\n", "line 3"),
            (b"image,image\na.jpg,b.jpg\n", "twice"),
            (b'image\n"a.jpg\n', "line"),
            (b"image\na\0.jpg\n", "NUL"),
            (b"image\na\xff.jpg\n", "UTF-8"),
            ("image\na.jpg\n".encode("utf-16"), "line 1"),
        ],
    )
    def test_broken_csv_is_rejected_with_its_line(self, text, word):
        Path("m.csv").write_bytes(text)
        with pytest.raises(ManifestError, match=word):
            Inventory.scan(["m.csv"])

    def test_csv_with_mark_quotes_and_line_breaks_is_read(self):
        Path("m.csv").write_bytes('\ufeffimage,note\r\n"a,b.jpg","two\r\nlines"\r\n'.encode())
        (item,) = items("m.csv", reading=ReadOptions(keep=("note",)))
        assert (item.id, item.kept) == ("a,b.jpg", {"note": "two\r\nlines"})
        Path("m.tsv").write_text("image\tid\na.jpg\t1\n\n")
        assert ids("m.tsv") == ["1"]

    def test_too_many_parquet_rows_are_rejected(self, monkeypatch):
        name = parquet(image=["a.jpg"] * 4)
        monkeypatch.setattr("pgcli.inputs.parquet.MAX_ROWS", 3)
        with pytest.raises(ManifestError, match="states 4 rows"):
            Inventory.scan([name])

    def test_repeated_column_name_is_rejected(self):
        table = pa.table([pa.array(["a.jpg"]), pa.array(["b.jpg"])], names=["image", "image"])
        pq.write_table(table, "m.parquet")
        with pytest.raises(ManifestError, match="'image' twice"):
            Inventory.scan(["m.parquet"])

    @pytest.mark.parametrize(
        ("name", "is_read"),
        [
            ("arrow.py_extension_type", True),
            ("evil.unknown", True),
            ("arrow.uuid", False),
            ("arrow.fixed_shape_tensor", False),
        ],
    )
    def test_extension_types_of_parquet_run_no_code(self, name, is_read):
        pickled = b"\x80\x04cos\nmkdir\n(S'exploded'\ntR."
        metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": pickled}
        schema = pa.schema([pa.field("image", pa.string(), metadata=metadata)])
        pq.write_table(pa.table([pa.array(["a.jpg"])], schema=schema), "m.parquet")
        if is_read:
            assert ids("m.parquet") == ["a.jpg"]
        else:
            with pytest.raises(ManifestError, match="not a readable Parquet"):
                Inventory.scan(["m.parquet"])
        assert not Path("exploded").exists()

    def test_overlong_path_takes_no_time(self):
        name = json_lines({"image": "../" * 10**6}, {"image": "a/" * 10**6}, {"image": "a.jpg"})
        with processor_time_below(200):
            assert faults(name) == ["missing", "missing", None]


SAFE = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
IDS = st.text(SAFE).filter(str.strip)
NAMES = IDS.filter(lambda text: ":" not in text)
ROWS = st.lists(st.tuples(NAMES, IDS), min_size=1, unique_by=lambda row: row[1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
def test_every_format_gives_the_same_ids_and_paths(rows):
    records = [{"image": image, "id": id_} for image, id_ in rows]
    with open("m.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["image", "id"], quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(records)
    columns = {"image": [image for image, _ in rows], "id": [id_ for _, id_ in rows]}
    for name in (json_lines(*records), "m.csv", parquet(**columns)):
        found = items(name, reading=OUTSIDE)
        assert [(item.path, item.id) for item in found] == rows
        assert [item.image for item in found] == [image for image, _ in rows]


@given(st.binary(min_size=1).filter(lambda raw: b"\0" not in raw))
def test_every_path_is_written_as_utf8_and_read_back(raw):
    path = os.fsdecode(raw)
    written = display_path(path)
    assert written.encode()
    assert parse_path(written) == path


class TestStandardInput:
    def test_line_is_a_path_as_typed(self, set_stdin):
        mark = b"\xef\xbb\xbf"
        set_stdin(mark + b"a.jpg\r\n\n  \n/b c/d.png\n" + mark * 2 + b"../e.gif")
        found = items("-")
        assert [item.id for item in found] == ["a.jpg", "/b c/d.png", "../e.gif"]
        assert [item.path for item in found] == [item.image for item in found]

    def test_nul_separated_names_are_never_json(self, set_stdin):
        names = ["\ufeffa\nb.jpg", '{"image": "x"}', "c.jpg\r"]
        set_stdin("\0\0".join(names).encode())
        assert ids("-", reading=ReadOptions(null_separated=True)) == names

    def test_existing_path_with_a_brace_is_a_path(self, set_stdin):
        touch("{a}.jpg")
        set_stdin(b"{a}.jpg\n{b}.jpg\n")
        found = iter(Inventory.scan(["-"]))
        assert next(found).path == "{a}.jpg"
        with pytest.raises(ManifestError, match="line 2"):
            next(found)

    def test_undecodable_paths_and_uris_are_read(self, set_stdin):
        set_stdin(b"\xff.jpg\nfile:%FE.jpg\nhttp://x/a.jpg\n")
        first, second, third = items("-")
        assert (first.image, first.path) == ("file:%FF.jpg", "\udcff.jpg")
        assert (second.image, second.path) == ("file:%FE.jpg", "\udcfe.jpg")
        assert third.fault.code == "url_blocked"

    @pytest.mark.parametrize(
        ("line", "reading"),
        [
            (b'{"image": "a.jpg"}', ReadOptions(keep=("n",))),
            (b'{"image": "a.jpg"}', ReadOptions(fields=("n",))),
            (b'{"image": "a.jpg"}', ReadOptions(requires_prompts=True)),
            (b'{"photo": "a.jpg"}', ReadOptions()),
            (b"a.jpg", ReadOptions(requires_prompts=True)),
            (b"a.jpg", ReadOptions(keep=("n",))),
        ],
    )
    def test_line_without_a_required_value_is_named(self, set_stdin, line, reading):
        set_stdin(b"\n" + line)
        with pytest.raises(UsageError, match="line 2"):
            list(Inventory.scan(["-"], reading))

    def test_standard_input_can_be_named_once(self, set_stdin):
        set_stdin(b"a.jpg\n")
        with pytest.raises(UsageError):
            Inventory.scan(["-", "-"])

    def test_item_is_yielded_before_the_next_line_arrives(self, monkeypatch):
        out, into = os.pipe()
        with os.fdopen(out) as reader, os.fdopen(into, "wb", 0) as writer:
            monkeypatch.setattr(sys, "stdin", reader)
            found = iter(Inventory.scan(["-"]))
            writer.write(b"a.jpg\nb.j")
            assert next(found).id == "a.jpg"
            threading.Timer(0.1, writer.write, [b"pg\n"]).start()
            assert next(found).id == "b.jpg"

    def test_closed_standard_input_is_rejected(self, monkeypatch):
        monkeypatch.setattr(sys, "stdin", None)
        with pytest.raises(UsageError, match="closed"):
            Inventory.scan(["-"])

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF"])
    def test_bytes_of_an_image_are_an_image(self, set_stdin, kind):
        data = encoded(drawing(), kind)
        set_stdin(data)
        for spool in (False, True):
            set_stdin(data)
            (item,) = Inventory.scan(["-"], ReadOptions(spool=spool))
            assert (item.index, item.id, item.image, item.data) == (0, "0", "-", data)

    def test_spooled_lines_are_counted_and_read_by_another_process(self, set_stdin):
        set_stdin(b'a.jpg\n\n{"image": "b.jpg", "n": 1}\nc.txt')
        touch("i/z.jpg")
        names = ["-", "i"]
        reading = ReadOptions(spool=True, names=NameFilter(exclude=("*.txt",)))
        inventory = Inventory.scan(names, reading)
        assert inventory.total == 3
        assert [item.id for item in inventory.items(1, 3)] == ["b.jpg", "i/z.jpg"]
        assert list(reloaded(inventory, names, reading)) == list(inventory)

    def test_path_may_be_given_twice(self, set_stdin):
        """As in a manifest whose rows ask several questions about one image."""
        for spool in (False, True):
            set_stdin(b'a.jpg\n{"image": "a.jpg"}\na.jpg\n')
            assert ids("-", reading=ReadOptions(spool=spool)) == ["a.jpg"] * 3

    def test_repeated_id_of_a_line_is_rejected(self, set_stdin):
        set_stdin(b'{"image": "a", "id": 1}\n{"image": "b", "id": 1}\n')
        with pytest.raises(
            ManifestError,
            match="the id '1' occurs twice: standard input, line 1 and standard input, line 2",
        ):
            list(Inventory.scan(["-"]))


def test_texts_are_items():
    inventory = Inventory.of_texts(["a cat", "é"])
    found = list(reloaded(inventory, [], ReadOptions()))
    assert [(item.id, item.prompts) for item in found] == [("0", ("a cat",)), ("1", ("é",))]
    assert (inventory.total, inventory.has_prompts, inventory.has_columns) == (2, True, False)
    with pytest.raises(UsageError, match="a list of texts has no column 'x'"):
        Inventory.of_texts(["a"], ReadOptions(keep=("x",)))
