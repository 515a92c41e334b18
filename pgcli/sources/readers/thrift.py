"""Reads structs in Thrift's compact protocol, in which Parquet writes the headers of its pages."""

from __future__ import annotations

from typing import Any

#: Parquet's own structs are nested less deeply.
MAX_DEPTH = 16
STOP, TRUE, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)


class Truncated(ValueError):
    """The data end within the struct."""


class CompactReader:
    """Reads values from `data`, and counts the bytes read in `offset`."""

    def __init__(self, data: bytes):
        self.data, self.offset = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by their numbers. Raises Truncated, or ValueError."""
        if depth > MAX_DEPTH:
            raise ValueError("a struct is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (head := self._bytes(1)[0]) != STOP:
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, depth, is_field=True)
        return fields

    def _value(self, kind: int, depth: int, *, is_field: bool = False) -> Any:
        match kind:
            case 1 | 2:
                return kind == TRUE if is_field else self._bytes(1)[0] == TRUE
            case 3:
                return self._bytes(1)[0]
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                head = self._bytes(1)[0]
                count = head >> 4 if head >> 4 < 15 else self._unsigned()
                return [self._value(head & 15, depth + 1) for _ in range(count)]
            case 12:
                return self.struct(depth + 1)
        raise ValueError(f"a value of the unknown type {kind}")

    def _bytes(self, count: int) -> bytes:
        found = self.data[self.offset : self.offset + count]
        if len(found) < count:
            raise Truncated(f"{count} bytes are missing")
        self.offset += count
        return found

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._bytes(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("a number has more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
