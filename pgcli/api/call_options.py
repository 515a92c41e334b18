"""Options of calls from Python, for type checkers: printed by `docs/call_options.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypedDict


class CallOptions(TypedDict, total=False):
    """Keyword arguments of `pgcli.run`, `pgcli.load` and the methods of `pgcli.Engine`.

    Each is the option of the command line with this name; `progress` shows it on stderr.
    """

    lang: str | os.PathLike[str] | None
    prompt: str | Sequence[str] | None
    prompts_file: str | os.PathLike[str] | None
    choice: str | Sequence[str] | None
    choices_column: str | os.PathLike[str] | None
    min_confidence: float | None
    object: str | Sequence[str] | None
    strict: bool | None
    each: bool | None
    mask_decoder: str | os.PathLike[str] | None
    text: str | Sequence[str] | None
    texts_file: str | os.PathLike[str] | None
    raw_text: bool | None
    dtype_out: Literal["float32", "float16"] | None
    text_column: str | os.PathLike[str] | None
    label: str | Sequence[str] | None
    label_file: str | os.PathLike[str] | None
    template: str | Sequence[str] | None
    top: int | None
    image_column: str | os.PathLike[str] | None
    id_column: str | os.PathLike[str] | None
    prompt_column: str | os.PathLike[str] | None
    keep: str | Sequence[str] | None
    limit: int | None
    shard: str | os.PathLike[str] | None
    include: str | Sequence[str] | None
    exclude: str | Sequence[str] | None
    null: bool | None
    workers: int | None
    max_pixels: int | None
    fast_decode: bool | None
    allow_outside_root: bool | None
    allow_urls: bool | None
    allow_private_hosts: bool | None
    format: Literal["auto", "jsonl", "text"] | None
    draw: str | os.PathLike[str] | None
    sidecar: str | os.PathLike[str] | None
    no_timing: bool | None
    rows_per_file: int | None
    overwrite: bool | None
    model: str | os.PathLike[str] | None
    revision: str | os.PathLike[str] | None
    adapter: str | os.PathLike[str] | None
    device: Any
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None
    quantize: Literal["none", "int8", "fp8"] | None
    batch_size: int | None
    engines: int | None
    ray: str | os.PathLike[str] | None
    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    region: Any
    on_error: Literal["record", "stop"] | None
    max_errors: Any
    retry_errors: bool | None
    retry_changed: bool | None
    dry_run: bool | None
    quiet: bool | None
    verbose: bool | None
    config: str | os.PathLike[str] | None
    log_format: Literal["text", "json"] | None
    no_progress: bool | None
    debug: bool | None
    progress: bool
