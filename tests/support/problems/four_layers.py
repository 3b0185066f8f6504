"""A chain of four convolutions on maps of 12 x 12, of which words and operations are worked out by hand."""

from __future__ import annotations

CHAIN = """
network: four
input: [64, 16, 12, 12]
layers:
  - {name: a, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 32, kernel: 3, padding: 1}}
  - {name: c, conv2d: {out_channels: 64, kernel: 3, padding: 1}}
  - {name: d, conv2d: {out_channels: 64, kernel: 3, padding: 1}}
"""
WORDS = [16 * 32 * 9, 32 * 32 * 9, 32 * 64 * 9, 64 * 64 * 9]  # of the weights
OPERATIONS = [2 * words * 144 for words in WORDS]  # of one sample
