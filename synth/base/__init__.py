"""Errors, units, text tables and files: what every stage uses and no stage owns."""
