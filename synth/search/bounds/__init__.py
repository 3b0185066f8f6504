"""Lower bounds of the words and the memory of grids and of their ranges, within the limit of a request."""
