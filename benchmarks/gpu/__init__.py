"""Layers and whole networks on one GPU: speed, memory, rates and the time model beside measured times."""
