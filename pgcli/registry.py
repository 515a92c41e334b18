"""Formats, metrics and model families by name: built in, or added by packages' entry points."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

#: The module and the attribute of each name, by group; they are imported when they are used.
BUILT_IN: Mapping[str, dict[str, str]] = {
    "exports": {
        "coco": "pgcli.results.exports.annotations.COCO",
        "yolo": "pgcli.results.exports.annotations.YOLO",
        "labelstudio": "pgcli.results.exports.annotations.LABEL_STUDIO",
        "imagefolder": "pgcli.results.exports.files.IMAGEFOLDER",
        "txt": "pgcli.results.exports.files.TXT",
        "caption": "pgcli.results.exports.files.CAPTION",
        "csv": "pgcli.results.exports.files.CSV",
        "parquet": "pgcli.results.exports.files.TABLE",
        "webdataset": "pgcli.results.exports.files.WEBDATASET",
        "fiftyone": "pgcli.results.exports.annotations.FIFTYONE",
    },
    "imports": {
        "coco": "pgcli.labels.coco.COCO",
        "yolo": "pgcli.labels.yolo.YOLO",
        "labelstudio": "pgcli.labels.labelstudio.LABEL_STUDIO",
        "parquet": "pgcli.labels.sources.TABLE",
        "csv": "pgcli.labels.sources.TABLE",
        "webdataset": "pgcli.labels.sources.TABLE",
    },
    "metrics": {
        "exact": "pgcli.evaluation.text_metrics.EXACT",
        "vqa": "pgcli.evaluation.text_metrics.VQA",
        "anls": "pgcli.evaluation.text_metrics.ANLS",
        "relaxed": "pgcli.evaluation.text_metrics.RELAXED",
        "cider": "pgcli.evaluation.cider.CIDER",
        "ap": "pgcli.evaluation.box_metrics.AP",
        "acc@0.5": "pgcli.evaluation.box_metrics.BOX_ACCURACY",
        "miou": "pgcli.evaluation.box_metrics.MIOU",
        "accuracy": "pgcli.evaluation.text_metrics.ACCURACY",
        "retrieval": "pgcli.evaluation.retrieval.RETRIEVAL",
    },
    "manifests": {
        ".jsonl": "pgcli.inputs.lines.JsonTable",
        ".ndjson": "pgcli.inputs.lines.JsonTable",
        ".csv": "pgcli.inputs.lines.CsvTable",
        ".tsv": "pgcli.inputs.lines.TsvTable",
        ".parquet": "pgcli.inputs.parquet.ParquetTable",
        ".pdf": "pgcli.inputs.pdf.PdfTable",
        ".tar": "pgcli.inputs.tar.TarTable",
        ".tar.gz": "pgcli.inputs.tar.TarTable",
        ".tgz": "pgcli.inputs.tar.TarTable",
    },
    "outputs": {
        ".jsonl": "pgcli.output.lines.LINES",
        ".parquet": "pgcli.output.tables.PARQUET",
    },
    # by the `model_type` of a configuration; with the word classifier for image classifiers, and
    # with the architecture if that decides
    "families": {
        "paligemma": "pgcli.checkpoints.families.paligemma.PALIGEMMA",
        "paligemma ColPali": "pgcli.checkpoints.families.colpali.COLPALI_ENGINE",
        "colpali": "pgcli.checkpoints.families.colpali.COLPALI",
        "gemma3": "pgcli.checkpoints.families.gemma3.GEMMA3",
        "siglip": "pgcli.checkpoints.families.encoders.SIGLIP",
        "siglip_vision_model": "pgcli.checkpoints.families.encoders.VISION_TOWER",
        "siglip classifier": "pgcli.checkpoints.families.encoders.SIGLIP_CLASSIFIER",
        "clip": "pgcli.checkpoints.families.encoders.CLIP",
        "clip classifier": "pgcli.checkpoints.families.encoders.CLIP_CLASSIFIER",
        "vit classifier": "pgcli.checkpoints.families.encoders.VIT",
    },
}
#: The groups that entry points `pgcli.GROUP` add to. Each entry point names an instance of the
#: class here, for manifests a subclass.
PLUGIN_CLASSES: Mapping[str, str] = {
    "exports": "pgcli.results.exports.rows.ExportFormat",
    "imports": "pgcli.labels.labelled_image.LabelFormat",
    "metrics": "pgcli.evaluation.measures.Metric",
    "manifests": "pgcli.inputs.tables.Table",
    "outputs": "pgcli.output.tables.TableFormat",
}


def names(group: str) -> list[str]:
    """The names of a group: built-in ones, then plug-ins."""
    return [*BUILT_IN[group], *_plugins(group)]


def load(group: str, name: str) -> Any:
    """The format, metric, class or family of this name. Raises KeyError for an unknown name."""
    path = BUILT_IN[group].get(name)
    return _plugins(group)[name] if path is None else _imported(path)


def parse_name(group: str, value: object, *words: str) -> str:
    """The name of an entry in the group, or one of `words`, from any case. Raises ValueError."""
    name, known = str(value).lower(), [*words, *names(group)]
    if name not in known:
        raise ValueError(f"must be one of {', '.join(known)}, not {value!r}")
    return name


@cache
def _plugins(group: str) -> Mapping[str, Any]:
    """The plug-ins of installed packages for a group. A broken one is skipped with a warning."""
    plugins: dict[str, Any] = {}
    if group not in PLUGIN_CLASSES:
        return plugins
    from importlib.metadata import entry_points  # slow to import

    for entry_point in entry_points(group=f"pgcli.{group}"):
        name = entry_point.name
        try:
            if name in BUILT_IN[group] or name in plugins:
                raise ValueError("another one has this name")
            plugin = entry_point.load()
            kind = _imported(PLUGIN_CLASSES[group])
            is_table = isinstance(plugin, type) and issubclass(plugin, kind)
            if not (is_table if group == "manifests" else isinstance(plugin, kind)):
                raise TypeError(f"it is not a {PLUGIN_CLASSES[group]}")
        except Exception as problem:  # noqa: BLE001 - a plug-in runs code of others
            package = entry_point.dist.name if entry_point.dist else entry_point.value
            warnings.warn(
                f"the plug-in {name!r} for {group} from {package} is ignored: "
                f"{type(problem).__name__}: {problem}",
                stacklevel=2,
            )
        else:
            plugins[name] = plugin
    return plugins


def _imported(path: str) -> Any:
    module, _, attribute = path.rpartition(".")
    return getattr(import_module(module), attribute)
