"""Exact search for the process grid and the tilings that move the fewest words or take the least time."""
