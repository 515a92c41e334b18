"""The commands, one file for each: declaration and body."""
