"""`pgcli export --to voc`: Pascal VOC, an XML file for each image."""

from collections.abc import Iterable
from pathlib import Path
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from pgcli.results.exports.rows import Export, ExportEntry, ExportFormat
from pgcli.text import printable


def write_voc(folder: Path, entries: Iterable[ExportEntry], export: Export) -> None:
    """Fill the new folder. Pixels count from 1, and a box includes its last one."""
    for entry in entries:
        image = Element("annotation")
        SubElement(image, "filename").text = printable(entry.name)
        size = SubElement(image, "size")
        for name, value in (("width", entry.width), ("height", entry.height), ("depth", 3)):
            SubElement(size, name).text = str(value)
        for box, _ in entry.boxes():
            thing = SubElement(image, "object")
            SubElement(thing, "name").text = printable(box.label)
            corners = SubElement(thing, "bndbox")
            sides = (box.xmin + 1, box.ymin + 1, box.xmax, box.ymax)
            for name, side in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True):
                SubElement(corners, name).text = str(round(side))
            export.counts.boxes += 1
        file = folder / f"{entry.stem}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        indent(image)
        ElementTree(image).write(file, encoding="utf-8")
        export.counts.images += 1


VOC = ExportFormat(write_voc, is_folder=True, needs_boxes=True, unique_stems=True)
