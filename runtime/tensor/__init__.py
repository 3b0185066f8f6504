"""Global tensors of which every rank holds a part, and torch's operations on them."""
