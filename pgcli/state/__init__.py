"""What a run knows of itself: where it is kept."""
