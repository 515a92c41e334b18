"""Reads the annotations of other tools as labelled rows: `pgcli import`."""
