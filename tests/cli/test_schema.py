"""`ask --schema`: answers are JSON that fits a schema, and `values` has the schema's types."""

import json
import shutil
import sys
from pathlib import Path

import duckdb
import jsonschema
import pandas
import polars
import pyarrow
import pytest
import torch
from pyarrow import parquet

import pgcli
from pgcli.answer_schema import read_schema, values_type
from pgcli.engine.json_grammar import JsonGrammar
from pgcli.errors import UsageError
from tests.support.tiny_gemma3 import write_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
TEXT, FLAG = {"type": "string", "maxLength": 6}, {"type": "boolean"}


def schema_of(**properties):
    return {"type": "object", "properties": properties, "required": [*properties]}


SCHEMAS = {
    "text": schema_of(name=TEXT),
    "nested": schema_of(size=schema_of(unit={"enum": ["cm", "m"]}, is_tall=FLAG)),
    "enum": schema_of(kind={"type": "string", "enum": ["a b", "Größe", 'q"']}),
    "array": schema_of(tags={"type": "array", "items": TEXT, "maxItems": 3}),
    "array of objects": schema_of(
        parts={"type": "array", "items": schema_of(n={"type": "integer"}), "maxItems": 2}
    ),
    "optional": {"type": "object", "properties": {"a": FLAG, "b": TEXT}, "required": ["b"]},
    "nullable": schema_of(a={"type": ["string", "null"], "maxLength": 4}, b={"const": 5}),
    "bounds": schema_of(
        whole={"type": "integer", "minimum": 3, "maximum": 40},
        part={"type": "number", "exclusiveMinimum": 0, "maximum": 1, "multipleOf": 0.01},
    ),
    "Unicode": schema_of(**{"größe €": {"enum": ["日本", "é\n"]}, "s": TEXT}),
    "reference": {
        "$defs": {"Price": {"title": "Price", **schema_of(cents={"type": "integer"})}},
        **schema_of(price={"$ref": "#/$defs/Price"}),
        "title": "from pydantic",
    },
}


@pytest.fixture(scope="module")
def engine():
    return pgcli.load("demo")


@pytest.fixture
def photos(workdir):
    shutil.copytree(EXAMPLES, "photos")
    Path("product.json").write_text(json.dumps(SCHEMAS["nested"]), "utf-8")
    return Path("photos")


@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_fit_the_schema(name, engine):
    schema = SCHEMAS[name]
    sampled = {"temperature": 1.5, "seed": 3}
    answers = [*engine.ask(EXAMPLES, "x", schema=schema, **sampled)]
    assert {answer.error for answer in answers} == {None}
    for answer in answers:
        assert json.loads(answer.answer) == answer.values
        jsonschema.validate(answer.values, schema)
    assert len({answer.answer for answer in answers}) > 1 or name in ("nested", "Unicode")


def test_answers_do_not_depend_on_the_batch(engine):
    schema = schema_of(name=TEXT, tags={"type": "array", "items": TEXT, "maxItems": 2})
    together, alone = (
        [a.answer for a in engine.ask(EXAMPLES, "x", schema=schema, batch_size=size)]
        for size in (8, 1)
    )
    assert together == alone


def test_gemma3_answers_in_json(workdir):
    """Its turn ends after the JSON."""
    engine = pgcli.load(write_checkpoint(workdir / "model", window=12))
    answers = [*engine.ask(EXAMPLES, "x", schema=SCHEMAS["nested"], batch_size=4)]
    assert {(answer.error, answer.finish) for answer in answers} == {(None, "stop")}
    for answer in answers:
        jsonschema.validate(answer.values, SCHEMAS["nested"])


def test_readers_of_parquet_see_a_struct(photos, cli):
    command = "ask photos --prompt x --schema product.json -o rows.parquet"
    assert cli(command)[0] == 0
    assert cli(command)[0] == 0  # nothing is left to do
    kind = parquet.read_schema("rows.parquet").field("values").type
    size = pyarrow.struct([("unit", pyarrow.string()), ("is_tall", pyarrow.bool_())])
    assert kind == pyarrow.struct([("size", size)])
    units = duckdb.sql("select values.size.unit from 'rows.parquet'").fetchall()
    assert {unit for (unit,) in units} <= {"cm", "m"}
    assert polars.read_parquet("rows.parquet")["values"].struct.field("size").len() == len(units)
    assert pandas.read_parquet("rows.parquet")["values"][0]["size"]["unit"] in ("cm", "m")


def test_files_made_of_result_files_keep_the_column(photos, cli):
    assert cli("ask photos --prompt x --schema product.json -o rows.jsonl")[0] == 0
    assert cli("ask photos --prompt x --schema product.json -o rows.parquet")[0] == 0
    assert cli("export rows.jsonl --to parquet -o a.parquet")[0] == 0
    assert cli("export rows.parquet --to parquet -o b.parquet")[0] == 0
    wanted = parquet.read_table("rows.parquet")["values"]
    assert parquet.read_table("a.parquet")["values"].to_pylist() == wanted.to_pylist()
    assert parquet.read_table("b.parquet")["values"].type == wanted.type
    assert cli("merge rows.parquet -o merged.jsonl")[0] == 0
    rows = [json.loads(line) for line in Path("merged.jsonl").read_text("utf-8").splitlines()]
    assert [row["values"] for row in rows] == wanted.to_pylist()


def test_engines_and_a_resumed_run_give_the_same_rows(photos, cli):
    command = "ask photos --prompt x --schema product.json --no-timing -o"
    assert cli(f"{command} whole.parquet")[0] == 0
    assert cli(f"{command} resumed.parquet --limit 5")[0] == 0
    assert cli(f"{command} resumed.parquet")[0] == 0
    assert cli(f"{command} engines.parquet --engines 2 --device cpu")[0] == 0
    wanted = parquet.read_table("whole.parquet")
    for file in ("resumed.parquet", "engines.parquet"):
        table = parquet.read_table(file)
        assert table["values"] == wanted["values"]
        assert table["answer"] == wanted["answer"]
    assert cli("check resumed.parquet")[0] == 0


def test_another_schema_is_another_run(photos, cli):
    command = "ask photos --prompt x --schema product.json -o rows.jsonl"
    assert cli(command)[0] == 0
    Path("product.json").write_text(json.dumps(SCHEMAS["text"]), "utf-8")
    code, _, err = cli(command)
    assert code == 13
    assert "schema" in err


def test_a_cut_answer_is_an_error_row_that_keeps_its_text(photos, cli):
    code, out, err = cli(
        "ask photos/one.png --prompt x --schema product.json --max-new-tokens 4 --format jsonl"
    )
    row = json.loads(out)
    assert code == 3
    assert row["error"] == "cut"
    assert '{"size":{"'.startswith(row["answer"])
    assert row["values"] is row["tokens"] is row["finish"] is row["vision_ms"] is None
    assert "4 tokens" in row["error_message"]
    assert "cut 1" in err


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([], "not a schema"),
        ({"type": "string"}, "not one of an object"),
        ({"type": "object"}, "no properties"),
        ({"type": "object", "properties": {}}, "free keys"),
        ({**SCHEMAS["text"], "additionalProperties": True}, "free keys"),
        ({**SCHEMAS["text"], "patternProperties": {"^x": TEXT}}, "free keys"),
        ({**SCHEMAS["text"], "required": ["name", "price"]}, "requires one"),
        (schema_of(a={"anyOf": [TEXT, FLAG]}), "several types: bool, string"),
        (schema_of(a={"type": ["string", "integer"]}), "several types"),
        (schema_of(a={"oneOf": [schema_of(x=TEXT), schema_of(y=TEXT)]}), "several types"),
        (schema_of(a={"enum": ["x", 1]}), "several types"),
        (schema_of(a={"type": "null"}), "always null"),
        (schema_of(a={}), "no known type"),
        (schema_of(a={"type": "array"}), "the items of the property 'a'"),
        (schema_of(a={"type": "array", "prefixItems": [TEXT], "items": FLAG}), "several types"),
        (schema_of(a={"type": "integer", "maximum": 2**70}), "64 bits"),
        (schema_of(a={"$ref": "#"}), "contains itself"),
        (schema_of(a={"$ref": "#/$defs/B"}), "refers to"),
        (schema_of(a={"$ref": "other.json#/a"}), "refers to"),
        (schema_of(a={"type": "array", "items": TEXT, "uniqueItems": True}), "uniqueItems"),
        (schema_of(a={"type": "string", "pattern": "(?=a)b"}), "look-ahead"),
        (schema_of(a={"type": "integer", "minimum": 5, "maximum": 3}), "nsatisfiable"),
    ],
)
def test_schemas_without_one_type_are_refused_before_the_model_loads(schema, message, photos, cli):
    Path("product.json").write_text(json.dumps(schema), "utf-8")
    code, _, err = cli("ask photos --prompt x --schema product.json --model missing/model")
    assert code == 2
    assert message in err
    assert "hint: " in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--schema missing.json", "missing.json cannot be read"),
        ("--schema photos/one.png", "not UTF-8"),
        ("--schema text.txt", "not JSON"),
        ("--schema product.json --choice a --choice b", "exclude each other"),
    ],
)
def test_options_that_make_no_schema_are_refused(options, message, photos, cli):
    Path("text.txt").write_text("name: string", "utf-8")
    code, _, err = cli(f"ask photos --prompt x {options}")
    assert code == 2
    assert message in err


def test_the_error_names_the_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match="llguidance") as caught:
        read_schema(json.dumps(SCHEMAS["text"]))
    assert "[schema]" in caught.value.hint


def test_numbers_without_bounds_have_64_bits_and_no_exponent():
    schema = json.loads(read_schema(json.dumps(schema_of(a={"type": "integer"}))))
    assert schema["properties"]["a"] == {"type": "integer", "minimum": -(10**18), "maximum": 10**18}
    assert values_type(json.dumps(schema)) == pyarrow.struct([("a", pyarrow.int64())])


def test_location_tokens_are_not_text(engine):
    tokenizer = engine._engine.tokenizer
    grammar = JsonGrammar(tokenizer, read_schema(json.dumps(SCHEMAS["text"])), [1])
    rows = grammar.rows(max_rows=2, device=torch.device("cpu"))
    rows.insert(slice(0, 2), [(None, 9)] * 2)
    for token in tokenizer.encode_text('{"name":"'):
        rows.advance(slice(0, 2), torch.tensor([token, token]))
    allowed_BV = rows.mask(slice(0, 2)).allowed_BA
    assert allowed_BV[0, tokenizer.id("a")]
    assert not allowed_BV[:, tokenizer.locations.start : tokenizer.locations.stop].any()
    assert not allowed_BV[:, [tokenizer.bos, 1]].any()
