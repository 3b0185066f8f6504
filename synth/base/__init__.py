"""Errors, units, arithmetic, text tables and files. Every stage may import them."""
