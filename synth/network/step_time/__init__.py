"""Seconds of a training step or a forward pass of a whole network, as its runtime makes it."""
