"""What a person sees on the terminal: console, progress, reports, sanitising."""
