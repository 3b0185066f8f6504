"""A distributed torch model: its step graph, its state, and the watch of its ranks."""
