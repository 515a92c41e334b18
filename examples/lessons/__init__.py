"""Lessons: the ideas behind PaliGemma, a short program each (docs/explanation/lessons/)."""
