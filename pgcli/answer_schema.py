"""The JSON Schema of answers: the schemas that pgcli accepts, and the type of the column `values`.

Each place of an answer has one Arrow type: objects have the properties that the schema names and no
others, numbers have 64 bits, and llguidance can force answers that fit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pgcli.errors import UsageError
from pgcli.text import is_deep, shown

if TYPE_CHECKING:
    import pyarrow

Schema = dict[str, Any]

#: Numbers without a bound lie between plus and minus these: integers then have 64 bits, and other
#: numbers no exponent, so that none is infinite.
LARGEST_VALUES = {"integer": 10**18, "number": 10**15}
BOUNDS = (("minimum", "exclusiveMinimum", -1), ("maximum", "exclusiveMaximum", 1))
#: Keywords that do not limit values.
ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly $schema $id $comment $defs "
    "definitions".split()
)
#: llguidance writes JSON without blanks.
COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


def read_schema(text: str) -> str:
    """The schema, from JSON, as JSON without references, annotations and free keys.

    Raises UsageError for a schema that is not accepted, and without llguidance.
    """
    hint = "each property of an answer has one type: see how-to/typed-answers.md"
    try:
        root = json.loads(text)
        schema, _ = _Reader(root).read(root, "the schema")
        if schema.get("type") != "object":
            raise ValueError("the schema is not one of an object")
        if is_deep(schema):
            raise ValueError("the schema is nested too deeply")
        read = json.dumps(schema, allow_nan=False, separators=(",", ":"))
    except json.JSONDecodeError as problem:
        hint = "name a file with a JSON Schema"
        raise UsageError(f"<--schema=>: this is not JSON: {problem}", hint=hint) from problem
    except (ValueError, RecursionError) as problem:
        raise UsageError(f"<--schema=>: {problem}", hint=hint) from problem
    if fault := _matcher().validate_grammar(compile_schema(read)):
        raise UsageError(
            f"<--schema=>: answers cannot be forced to fit it: {shown(fault, 200)}",
            hint="change or remove that keyword",
        )
    return read


def values_type(schema: str) -> pyarrow.DataType:
    """The type of the column `values` of answers to a schema that `read_schema` returned."""
    root = json.loads(schema)
    return _Reader(root).read(root, "the schema")[1]


def compile_schema(schema: str) -> str:
    """The grammar of a schema, for `llguidance.LLMatcher`."""
    grammar: str = _matcher().grammar_from_json_schema(schema, overrides=COMPACT)
    return grammar


def _matcher() -> Any:
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise UsageError(
            "<--schema=> needs llguidance, which is not installed",
            hint="pip install 'paligemma-cli[schema]'",
        ) from error
    return LLMatcher


class _Reader:
    """Reads the parts of a schema. Its methods raise ValueError for a part without one type."""

    def __init__(self, root: Any):
        import pyarrow

        self._root, self._arrow = root, pyarrow
        self._types = {
            "string": pyarrow.string(),
            "boolean": pyarrow.bool_(),
            "integer": pyarrow.int64(),
            "number": pyarrow.float64(),
            "null": pyarrow.null(),
        }

    def read(
        self, schema: Any, where: str, references: tuple[str, ...] = ()
    ) -> tuple[Schema, pyarrow.DataType]:
        """A part without references and annotations, and its type; the references lead to it."""
        if not isinstance(schema, dict):
            raise ValueError(f"{where} is not a schema")
        own = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
        kind = own.get("type")
        if "enum" in own or "const" in own:
            return own, self._constants(own, where)
        if isinstance(kind, list):
            own = {"anyOf": [{**own, "type": name} for name in kind]}
        for key in ("$ref", "anyOf", "oneOf", "allOf"):
            if key in own and len(own) > 1:
                raise ValueError(f"{where} has {key} beside {', '.join(own.keys() - {key})}")
            if key == "$ref" and key in own:
                if (name := str(own[key])) in references:
                    raise ValueError(f"{where} contains itself")
                return self.read(self._target(name, where), where, (*references, name))
            if key in own:
                parts = [self.read(part, where, references) for part in own[key]]
                return {key: [part for part, _ in parts]}, self._common(parts, where)
        if kind == "object":
            return self._object(own, where, references)
        if kind == "array":
            if "prefixItems" in own:
                raise ValueError(f"{where} has items of several types")
            items, of_items = self.read(own.get("items"), f"the items of {where}", references)
            return {**own, "items": items}, self._arrow.list_(of_items)
        if kind not in self._types:
            raise ValueError(f"{where} has no known type")
        return self._bounded(own, where), self._types[kind]

    def _object(
        self, own: Schema, where: str, references: tuple[str, ...]
    ) -> tuple[Schema, pyarrow.DataType]:
        properties, required = own.get("properties"), own.get("required", [])
        if not isinstance(properties, dict) or not {*required} <= {*properties}:
            raise ValueError(f"{where} has no properties, or requires one that it does not have")
        if not properties or own.get("additionalProperties") or "patternProperties" in own:
            raise ValueError(f"{where} has free keys")
        read = {
            name: self.read(part, f"the property {name!r}", references)
            for name, part in properties.items()
        }
        for name, (_, kind) in read.items():
            if kind == self._types["null"]:
                raise ValueError(f"the property {name!r} is always null")
        schemas = {name: part for name, (part, _) in read.items()}
        own = {**own, "properties": schemas, "additionalProperties": False}
        return own, self._arrow.struct([(name, kind) for name, (_, kind) in read.items()])

    def _target(self, name: str, where: str) -> Any:
        """The part of the schema that a reference names, as a JSON pointer."""
        target = self._root
        for key in name.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, dict) else None
        if target is None or not name.startswith("#"):
            raise ValueError(f"{where} refers to {shown(name)}, which this file does not have")
        return target

    def _common(self, parts: list[tuple[Schema, pyarrow.DataType]], where: str) -> pyarrow.DataType:
        """The one type of alternatives, beside null."""
        null = self._types["null"]
        kinds = {kind for _, kind in parts} - {null}
        if len(kinds) > 1:
            raise ValueError(f"{where} has several types: {', '.join(sorted(map(str, kinds)))}")
        return next(iter(kinds), null)

    def _constants(self, own: Schema, where: str) -> pyarrow.DataType:
        """The type of the values that the schema lists."""
        try:
            return self._arrow.array(own["enum"] if "enum" in own else [own["const"]]).type
        except (self._arrow.ArrowException, TypeError, OverflowError) as problem:
            raise ValueError(f"{where} has constants of several types") from problem

    def _bounded(self, own: Schema, where: str) -> Schema:
        """The schema of a value that is no container; a number has both bounds."""
        largest = LARGEST_VALUES.get(own["type"], 0)
        for key, exclusive, sign in BOUNDS if largest else ():
            bounds = [own[name] for name in (key, exclusive) if name in own]
            if not all(isinstance(bound, int | float) and abs(bound) < 2**63 for bound in bounds):
                raise ValueError(f"{where} has a bound beyond 64 bits")
            if not bounds:
                own = {**own, key: sign * largest}
        return own
