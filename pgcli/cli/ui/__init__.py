"""What a person sees: console, progress, summary, sanitising."""
