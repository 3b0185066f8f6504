"""Collectives: gather, reduce-scatter, halo exchange, redistribution."""
