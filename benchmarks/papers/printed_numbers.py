"""Numbers that the papers print, recomputed from networks and equations, each with its convention.

`DISAGREE` lists the numbers that do not reproduce, with the reason.
"""

from __future__ import annotations

import math

from synth.network.file import parse_network
from synth.network.graph import Network

GIB = 2**30


def cosmoflow(width: int, samples: int = 1) -> Network:
    """The network of Oyama et al., Table 2, at an input width of 128, 256 or 512."""
    lines = ["network: cosmoflow", f"input: [{samples}, 4, {width}, {width}, {width}]", "layers:"]
    pooled = 7 if width >= 512 else 6 if width >= 256 else 5
    for number, filters in enumerate((16, 32, 64, 128, 256, 256, 256), 1):
        stride = ", stride: 2" if number == 4 else ""
        lines.append(f"  - conv3d: {{out_channels: {filters}, kernel: 3, padding: 1{stride}}}")
        lines.append("  - relu: {}")
        if number <= pooled:
            lines.append("  - pool: {kernel: 3, stride: 2, padding: 1}")
    lines += ["  - flatten: {}", *(f"  - linear: {{out_features: {n}}}" for n in (2048, 256, 4))]
    return parse_network("\n".join(lines), f"cosmoflow{width}")


def conv_gflop(network: Network) -> float:
    """Forward GFlop per sample of the convolutions: 2 per multiply-add, padding included."""
    convs = (node for node in network.planned if node.kind.startswith("conv"))
    return 2 * sum(node.operations for node in convs) / network.input[0] / 1e9


def activation_gib(network: Network) -> float:
    """GiB per sample in float32, in the convention under which Oyama et al., Table 2, reproduces.

    It counts the outputs of convolutions, activations and poolings twice, and the input four times.
    """
    outputs = sum(n.out_words for n in network.nodes.values() if n.kind in ("conv3d", "relu", "pool"))
    one = network.input[1] * network.input[2] * network.input[3] * network.input[4]
    return 4 * (2 * (outputs / network.input[0] + one) + 2 * one) / GIB


def model_mib(parameters: int, statistics: int = 0, scales: int = 0) -> float:
    """MiB of a float32 model file: parameters, batch norm statistics and scale factors."""
    return 4 * (parameters + statistics + scales) / 2**20


# swCaffe, Table 2: (layer, input channels, filters, size, best forward seconds, printed Gflop/s), batch 128
SWCAFFE_FORWARD = (
    ("1_1", 3, 64, 224, 4.19, 5.29),
    ("1_2", 64, 64, 224, 4.30, 110.83),
    ("2_1", 64, 128, 112, 1.63, 146.68),
    ("2_2", 128, 128, 112, 2.34, 202.52),
    ("3_1", 128, 256, 56, 0.73, 323.10),
    ("3_2", 256, 256, 56, 1.14, 414.62),
    ("3_3", 256, 256, 56, 1.14, 415.97),
    ("4_1", 256, 512, 28, 0.69, 344.42),
    ("4_2", 512, 512, 28, 1.33, 347.36),
    ("4_3", 512, 512, 28, 1.33, 348.50),
    ("5_1", 512, 512, 14, 0.40, 293.58),
    ("5_2", 512, 512, 14, 0.40, 293.58),
    ("5_3", 512, 512, 14, 0.40, 293.59),
)


def swcaffe_gflops(channels: int, filters: int, size: int, seconds: float, batch: int = 128) -> float:
    """Gflop/s of a 3x3 "same" convolution: 2·multiply-adds of the batch over the time."""
    return 2 * 9 * channels * filters * size * size * batch / seconds / 1e9


def swcaffe(
    p: int, q: int, alpha: float, beta1: float, beta2: float, size: float, gamma: float = 0.0
) -> dict[str, float]:
    """Eq. 2 to 6 of swCaffe (CLUSTER 2018) as printed: seconds of collectives on `size` bytes over p nodes.

    A supernode has q nodes. β1 (seconds per byte) holds inside it, and β2 across. The paper prints
    β2 ≈ β1/4, but its text (a quarter of the bandwidth) means β2 ≈ 4·β1. γ is in seconds per added byte.
    """
    log, part, summed = math.log2(p), size / p, (p - 1) / p * size * gamma
    gather = log * alpha + (q - 1) * beta1 * part + (p - q) * beta2 * part  # Eq. 4
    new_gather = log * alpha + (p - p / q) * beta1 * part + (p / q - 1) * beta2 * part  # Eq. 6
    return {
        "reduce-scatter": gather + summed,  # Eq. 3
        "all-gather": gather,
        "all-reduce": 2 * gather + summed,  # Eq. 2
        "new reduce-scatter": new_gather + summed,  # Eq. 5
        "new all-gather": new_gather,
        "new all-reduce": 2 * new_gather + summed,
    }


DISAGREE: tuple[tuple[str, str], ...] = (
    ("swCaffe: the first fully connected layer of VGG-16 has 102 MB", "102.8 M is its element count"),
    ("swCaffe: the first convolution of VGG-16 has 1.7 KB", "1,728 is its element count"),
    ("swCaffe: β2 is about β1/4", "a quarter of the bandwidth is four times the time per byte"),
    (
        "Oyama et al., Table 1, conv4 to conv7",
        "no input width gives them; conv1 to conv3 are those of one input channel (conv1) and W = 128",
    ),
    ("Kahira et al.: mean accuracy 86.74 %", "the mean of the six printed means; their runs are unpublished"),
    (
        "Kahira et al., Eq. 12 and Table 3: max WU",
        "printed inside the bracket that is multiplied per segment; an update happens once per step",
    ),
)
