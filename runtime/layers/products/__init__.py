"""Products of matrices and attention, divided along the result."""
