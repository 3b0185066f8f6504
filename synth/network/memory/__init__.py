"""Memory of one step of a network on its ranks."""
