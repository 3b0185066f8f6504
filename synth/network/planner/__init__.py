"""The network planner: options of all layers, their prices, and the exact choice of one per layer."""
