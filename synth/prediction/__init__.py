"""The oracle: time and memory of a training step on a machine."""
