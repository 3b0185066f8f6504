"""The network planner: grids of all layers and the redistributions between them."""
