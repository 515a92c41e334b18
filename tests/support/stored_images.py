"""Images, archives and tables that tests serve from stores, and the settings of each store."""

import io
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.awkward import drawing, encoded, tar_of
from tests.support.writable_stores import environment

PNG, JPEG = encoded(drawing(), "PNG"), encoded(drawing(), "JPEG")
#: Names that sort differently if folders are sorted separately, and that URLs must quote.
IMAGES = {
    "a/b c.png": PNG,
    "a-b.jpg": JPEG,
    "a/é#?%41.png": PNG,
    "z.jpg": JPEG,
    "broken.png": b"x",
}


def rows_of_tar() -> bytes:
    return tar_of([("0.png", PNG), ("0.json", b'{"n": 1}'), ("1.jpg", JPEG)])


def parquet(count: int) -> bytes:
    held = io.BytesIO()
    images = [{"bytes": PNG, "path": f"{n}.png"} for n in range(count)]
    pq.write_table(pa.table({"image": images, "label": list(range(count))}), held)
    return held.getvalue()


FILES = {
    **{f"photos/{name}": data for name, data in IMAGES.items()},
    "photos/.h/x.png": PNG,
    "photos/a/.x.png": PNG,
    "sets/x.tar": rows_of_tar(),
    "parts/0.parquet": parquet(2),
    "parts/deep/1.parquet": parquet(1),
}


class StoreLocation(NamedTuple):
    """The URL of files in a store, and the environment variables for reading them."""

    base: str
    environment: dict[str, str]


def locate_store(kind: str, endpoint: str) -> StoreLocation:
    bases = {
        "gs": "gs://anonymous@images",
        "az": "az://images",
        "hf": "hf://datasets/somebody/images",
    }
    variables = {
        **environment(endpoint),
        "GOOGLE_BASE_URL": endpoint,
        "GOOGLE_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/account",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "secret",
    }
    return StoreLocation(bases.get(kind, "s3://images"), variables)
