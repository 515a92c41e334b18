"""The machine: its devices, dtypes, memory and clocks."""
