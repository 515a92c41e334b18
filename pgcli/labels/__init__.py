"""Reads labels of every format as one record, `LabelledImage`: for `import`, `eval` and `train`.

`sources` reads any source: a format of its own file (`coco`, `yolo`, `labelstudio`), or a table
with the labels in its `columns`. `upright` finds the images and turns boxes and masks as EXIF says.
"""
