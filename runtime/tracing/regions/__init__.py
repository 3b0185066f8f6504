"""Regions of a model whose calls are recorded with more: autocast, checkpoints."""
