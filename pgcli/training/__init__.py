"""Training: options, rows, the loop of every task, resuming, metrics and curves."""
