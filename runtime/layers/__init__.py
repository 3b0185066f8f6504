"""Distributed layers: convolution, normalization, pooling, dropout."""
