"""The graph of a torch model: recorded calls, their shapes, inputs and outputs."""
