"""The grids that a class of layers may have: boxes, words and bounds of many grids at once."""
