#!/bin/sh
# The main job in three steps; run by `make demo`, or by hand where `synth` is installed.
set -eux
synth plan examples/resnet50/conv4_x_3x3.yaml --procs 64
synth emit examples/small.yaml --procs 4 -o conv_dist.py
synth run examples/small.yaml --procs 4
