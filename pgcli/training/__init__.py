"""Training: the loop of every task, two towers and classifiers, losses, packing for prefix-LM."""
