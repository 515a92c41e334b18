"""The items of sources, their ids and their faults; a loaded inventory has the same."""

from pathlib import Path

from pgcli.inputs import Inventory, ReadOptions
from pgcli.records import Item


def touch(*names: str, data: bytes = b"x") -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)


def items(*sources: str, reading: ReadOptions | None = None) -> list[Item]:
    reading = reading or ReadOptions()
    inventory = Inventory.scan(sources, reading)
    found = list(inventory)
    assert [item.index for item in found] == list(range(len(found)))
    if "-" not in sources:
        assert list(inventory) == found
        assert inventory.total == len(found)
        assert list(reloaded(inventory, sources, reading)) == found
    return found


def reloaded(
    inventory: Inventory, sources: tuple[str, ...] | list[str], reading: ReadOptions
) -> Inventory:
    """The inventory as another process has it."""
    files = [inventory.to_arrow(number) for number in range(len(inventory.generations))]
    return Inventory.load(files, sources, reading)


def data_of(item: Item) -> bytes | None:
    """The bytes of an item that has them, or of its span."""
    if item.span is None:
        return item.data
    with open(item.path, "rb") as file:
        file.seek(item.span[0])
        return file.read(item.span[1])


def ids(*sources: str, reading: ReadOptions | None = None) -> list[str]:
    return [item.id for item in items(*sources, reading=reading)]


def faults(*sources: str, reading: ReadOptions | None = None) -> list[str | None]:
    found = items(*sources, reading=reading)
    return [item.fault.code if item.fault else None for item in found]
