"""Whether a network computes what its model does: both run side by side in one process."""
