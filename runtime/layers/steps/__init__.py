"""Steps of a network on shards: what they hold, and calls that act within a box."""
