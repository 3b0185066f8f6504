"""Machines: levels of a network, ranks per level, compute rates, and what collectives cost on them."""
