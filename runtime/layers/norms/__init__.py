"""Normalization of shards: the statistics of words that ranks divide."""
