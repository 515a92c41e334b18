"""What the commands that read result files share: their rows, their images, their runs."""
