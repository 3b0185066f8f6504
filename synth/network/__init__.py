"""Whole networks: the file, the graph, redistribution between layers, and a strategy per layer."""
