"""Model files: found on disk or on the Hub, checked to the last tensor, read into place."""
