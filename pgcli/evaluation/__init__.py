"""Evaluates answers against ground truth: `join` reads the truth and joins it with rows.

`measures` says which metric a task has, and resamples; each metric stands in `text_metrics`,
`box_metrics`, `cider` or `retrieval`. `evaluate` puts a file's numbers together.
"""
