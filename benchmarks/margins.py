"""Words and rounds with margins: `python -m benchmarks.margins [--recompute 0.1] [NAME ...]` (some minutes).

For each network and number of processes, in inference, or with --training in a training step: words received
per process and the longest chain of exchanges of rows, without margins and with them, the bound of schedules
that compute words again, and the processor time of both plans. The rows are those of docs/margins.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from examples import decoders, unet3d
from synth.base.text_table import table
from synth.base.units import show_words
from synth.network.file import load_network
from synth.network.graph import Network
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.recomputation import recomputing_words
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.trace_model import trace_model

COSMOFLOW = Path(__file__).resolve().parents[1] / "examples/networks/cosmoflow.yaml"


class UNet(nn.Module):
    """The U-Net of Ronneberger et al. (MICCAI 2015) with zero padding: 3 channels to 2."""

    def __init__(self, base: int = 64, levels: int = 4) -> None:
        super().__init__()
        width = [base << level for level in range(levels + 1)]
        self.down = nn.ModuleList(self.twice(a, b) for a, b in zip([3, *width], width, strict=False))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * n, n, 2, 2) for n in width[:-1])
        self.up = nn.ModuleList(self.twice(2 * n, n) for n in width[:-1])
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(base, 2, 1)

    @staticmethod
    def twice(before: int, after: int) -> nn.Sequential:
        """Two convolutions with ReLU."""
        first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of all positions."""
        skips = list[torch.Tensor]()
        for down in self.down:
            x = down(self.pool(x) if skips else x)
            skips.append(x)
        for skip, rise, up in zip(skips[-2::-1], reversed(self.rise), reversed(self.up), strict=True):
            x = up(torch.cat([skip, rise(x)], 1))
        scores: torch.Tensor = self.head(x)
        return scores


class Edsr(nn.Module):
    """The baseline of EDSR (Lim et al., CVPR workshops 2017): four times as many rows and columns."""

    def __init__(self, blocks: int = 16, width: int = 64) -> None:
        super().__init__()
        self.first, self.last = self.conv(3, width), self.conv(width, 3)
        pairs = ([self.conv(width, width), nn.ReLU(), self.conv(width, width)] for _ in range(blocks))
        self.body = nn.ModuleList(nn.Sequential(*each) for each in pairs)
        self.behind = self.conv(width, width)
        twice = [[self.conv(width, 4 * width), nn.PixelShuffle(2)] for _ in range(2)]
        self.larger = nn.Sequential(*twice[0], *twice[1])

    @staticmethod
    def conv(before: int, after: int) -> nn.Conv2d:
        """Keeps positions."""
        return nn.Conv2d(before, after, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 3, h, w) to (b, 3, 4 h, 4 w)."""
        x = y = self.first(x)
        for block in self.body:
            y = y + block(y)
        image: torch.Tensor = self.last(self.larger(x + self.behind(y)))
        return image


def without_attention() -> nn.Module:
    """The decoder of the examples without its attention."""
    layers = decoders.decoder(2)
    return nn.Sequential(*(each for each in layers if not isinstance(each, decoders.Attention)))


def traced(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Network]:
    """The network of a model for one shape."""
    return lambda: trace_model(make().eval(), shape).network


NETWORKS: dict[str, tuple[Callable[[], Network], tuple[int, ...]]] = {
    "unet": (traced(UNet, 1, 3, 512, 512), (4, 16, 64)),
    "unet3d": (traced(unet3d.UNet3d, 1, 1, 128, 128, 128), (8, 64)),
    "decoder": (traced(lambda: decoders.decoder(2), 1, 4, 64, 64), (4,)),
    "decoder without attention": (traced(without_attention, 1, 4, 64, 64), (4, 16, 64)),
    "edsr": (traced(Edsr, 1, 3, 256, 256), (4, 16, 64)),
    "cosmoflow": (lambda: load_network(COSMOFLOW), (16,)),
}


def planned(network: Network, procs: int, recompute: float, training: bool) -> tuple[NetworkPlan, float]:
    """A plan for words, and its processor time."""
    before = time.process_time()
    asked = NetworkRequest(procs, training=training, resident_weights=not training, input_gradient=False)
    plan = plan_network(network, replace(asked, recompute=recompute))
    return plan, time.process_time() - before


def row(name: str, network: Network, procs: int, recompute: float, training: bool = False) -> list[str]:
    """One row of the table."""
    without, alone = planned(network, procs, 0.0, training)
    plan, taken = planned(network, procs, recompute, training)
    margins = plan.margins
    rounds = ["-", "-", "-"]
    if margins is not None:
        rounds = [str(margins.rounds_before), str(margins.rounds), f"{margins.extra_work:.1%}"]
    words = [show_words(each.cost) for each in (without, plan)]
    bound = "-" if training else show_words(recomputing_words(plan))
    return [name, str(procs), *words, bound, *rounds, f"{alone:.1f} s", f"{taken:.1f} s"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--recompute", type=float, default=0.1)
    parser.add_argument("--training", action="store_true")
    args = parser.parse_args()
    rows = [["network", "P", "without", "with", "bound", "rounds", "with", "more work", "planned in", "with"]]
    for name in args.names or NETWORKS:
        make, counts = NETWORKS[name]
        network = make()
        for procs in counts:
            rows.append(row(name, network, procs, args.recompute, args.training))
            print(*rows[-1], sep=" | ", flush=True)
    print("\n".join(table(rows, right=range(1, 10))))


if __name__ == "__main__":
    main()
