"""Features of training loops: each runs on a network on four ranks and on the same model in one process."""
