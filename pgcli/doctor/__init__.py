"""Checks this machine; each problem comes with the command that fixes it."""
