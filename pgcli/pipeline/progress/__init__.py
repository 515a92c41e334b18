"""What a run says and counts: its progress, plan and summary, and the signals that end it."""
