"""Writes rows in the formats of other tools: `pgcli export`."""
