"""Parallel input: every rank reads its own part of every batch."""
