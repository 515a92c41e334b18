"""Rows saved as by a run, without the run."""

from pathlib import Path
from typing import Any

from pgcli.output.parquet import PARQUET
from pgcli.output.result_file import result_target, write_result_file
from pgcli.output.schema import rows_table
from pgcli.output.tables import PartInfo, part_metadata
from pgcli.records import Answer
from pgcli.rows import RowSchema
from pgcli.run.state.record import RUN, RunRecord, state_location
from pgcli.stores import LocalStore


def save(path: Path | str, *answers: Answer, **schema: Any) -> None:
    """Save rows in an output with a record; `schema` holds arguments of the RowSchema."""
    target, columns = Path(path), RowSchema(**schema)
    values = [columns.row(answer) for answer in answers]
    if str(path).endswith("/"):
        target.mkdir()
        table = rows_table(values, columns)
        with (target / "part-000000.parquet").open("wb") as file:
            PARQUET.write_tables(file, [table], part_metadata(PartInfo("1", 0, len(values))))
    else:
        write_result_file(result_target(str(target)), values, columns)
    state = LocalStore(Path(state_location(str(path))), create=True)
    state.create(RUN, RunRecord("1", {}, file_rows=10_000).to_bytes())
