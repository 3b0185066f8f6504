"""The measured layers and numbers of ranks, and the subset that takes a few minutes."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    "examples/resnet50/conv3_x_3x3.yaml",
    "examples/resnet50/conv5_x_3x3.yaml",
    "examples/wrn50_4/conv5_x_3x3.yaml",
    "examples/vgg16/conv4_2.yaml",
    "benchmarks/layers/cosmoflow_64.yaml",
    "benchmarks/layers/cosmoflow_128.yaml",
    "benchmarks/layers/matmul_square.yaml",
    "benchmarks/layers/matmul_tall.yaml",
    "benchmarks/layers/decoder_head.yaml",
    "benchmarks/layers/decoder_up.yaml",
    "benchmarks/layers/resnet50_conv5_1x1.yaml",
)
QUICK = (
    "examples/resnet50/conv3_x_3x3.yaml",
    "examples/resnet50/conv5_x_3x3.yaml",
    "benchmarks/layers/cosmoflow_64.yaml",
    "benchmarks/layers/matmul_square.yaml",
)
PROCS = (4, 8)
WORKS = ("training", "forward")
