"""Benchmarks pgcli and transformers alternately, and compares both with the machine's limit.

`benchmark` lets the `runners` of both programs alternate, `roofline` has the limit, and `report`
puts the numbers together.
"""
