"""Finds and reads checkpoints: `find` and `hub` get the `files`, `config`, `preprocessing` and
`tokenizer` read what they say, `weights` and `adapters` load the tensors, and `save` writes them.
`families` has a table of names and sizes for each kind of model.
"""
