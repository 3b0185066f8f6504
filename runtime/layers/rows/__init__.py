"""Sums, means and extrema of rows that ranks divide."""
