"""A network on one process beside the user's model: values, gradients, statistics."""
