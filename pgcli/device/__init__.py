"""The machine and its devices: dtypes, memory, clocks; `machine` loads no torch."""
