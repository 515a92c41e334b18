"""Two towers and classifiers learn: their losses, and the models they begin with."""
