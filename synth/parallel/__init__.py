"""A torch model on several ranks: `parallelize` and sharded input."""
