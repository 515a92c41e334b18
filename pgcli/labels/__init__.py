"""Reads labels of every format as one record, `LabelledImage`: for `import`, `eval` and `train`."""
