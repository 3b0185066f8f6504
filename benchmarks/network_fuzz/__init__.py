"""Random networks in the style of users, on ranks and in one process: faults of interactions."""
