"""Makes a Parquet dataset of images, for the how-to on Parquet datasets.

python examples/sales.py photos sales
"""

import sys
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 12


def write_sales(photos: Path, sales: Path) -> None:
    """Write a file of each shop, with images as bytes, times with a zone, and prices."""
    files = [file for file in sorted(photos.iterdir()) if file.suffix in (".png", ".jpg")]
    images = [file.read_bytes() for file in files]
    zone = pa.timestamp("ns", "Europe/Berlin")
    times = pa.array([datetime(2024, 5, 17, 12, number) for number in range(ROWS)], zone)
    for shop in ("de", "fr"):
        folder = sales / f"shop={shop}"
        folder.mkdir(parents=True)
        columns = {
            "image": [images[number % len(images)] for number in range(ROWS)],
            "id": [f"{shop}-{number}" for number in range(ROWS)],
            "taken": times,
            "price": pa.array([Decimal("19.90")] * ROWS, pa.decimal128(12, 2)),
            "answer": ["yes"] * ROWS,
        }
        pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=4)


if __name__ == "__main__":
    write_sales(Path(sys.argv[1]), Path(sys.argv[2]))
