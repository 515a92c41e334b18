"""The state of a run, kept in a folder beside its output: settings, lock, progress, journals."""
