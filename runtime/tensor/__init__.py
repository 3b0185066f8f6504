"""Global tensors of which every rank holds a part, and torch's operations on them."""

from synth.runtime.tensor.operations import dispatch as dispatch  # tensors call it
