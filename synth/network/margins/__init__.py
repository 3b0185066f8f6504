"""Margins: rows of neighbours that a rank computes as well, so that fewer words move between layers."""
