"""The columns that folders of a data set stand for, as in `sales/shop=de/year=2024/0.parquet`."""

from __future__ import annotations

from urllib.parse import unquote

#: What stands for null in the name of a folder.
NULL = "__HIVE_DEFAULT_PARTITION__"


def partition_columns(path: str) -> dict[str, str | None]:
    """The keys and values in the names of the folders that the path leads through."""
    folders = (part.partition("=") for part in path.split("/")[:-1])
    values = {unquote(key): unquote(value) for key, sign, value in folders if key and sign}
    return {key: None if value == NULL else value for key, value in values.items()}
