"""Trains PaliGemma on answers: loss, adapters and evaluation."""
