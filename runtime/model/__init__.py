"""A distributed torch model: tracing, the choice of steps, state dicts."""
