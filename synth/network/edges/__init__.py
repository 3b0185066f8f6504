"""Redistributions between layers: the boxes at both ends, the words that move, and their cost."""
