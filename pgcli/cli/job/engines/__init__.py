"""Engine processes of a run: how many, and the task that they answer."""
