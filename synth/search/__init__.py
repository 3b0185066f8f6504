"""The exact search for the grid and the tilings that move the fewest words or take the least time."""
