"""The inference engine: scheduling, prefill, decode, choices and memory.

`loader` makes an `engine` of a checkpoint's files. The `scheduler` selects the sequences of a pass,
`model_runner` runs it on the KV cache, and `sampler`, `grammar` and `choices` select tokens.
`memory` says how many rows fit, and what happens when they do not.
"""
