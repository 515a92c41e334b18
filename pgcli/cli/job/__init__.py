"""What the answering commands share: plan, run, output, settings, row hooks."""
