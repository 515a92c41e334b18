"""What a run leaves on disk: its state folder, rows in progress, and the forms of its output."""
