"""Distributed layers: convolution, normalization, pooling, dropout.

Here are planned layers, and the protocol between an emitted layer and the runtime.
Emitted modules import `distributed_layer` and `layer_program` by these names.
"""
