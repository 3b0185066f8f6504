"""Machines: levels, links and kernel rates, and the seconds that a layer takes on them."""
