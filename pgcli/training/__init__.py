"""Training: PaliGemma (`answers`, `lora`), two towers (`contrastive`) and classifiers (`classify`).

`run` reads `options` and `sources`, checks the `rows`, and makes one of these tasks (`task`). The
`trainer` updates its weights, in one of several `processes`, and writes the `run_files`.
"""
