"""The command `train`: its rows, record, plan, display and report."""
