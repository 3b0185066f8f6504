"""Reads torch models: traces them, rewrites their graphs, and makes networks of them for the planner."""
