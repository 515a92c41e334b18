"""Planted faults: what a mistake would be in each room, and the tests that must fall."""
