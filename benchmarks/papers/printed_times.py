"""Step and decoding times that others measured and printed, beside what the time model predicts for them.

Nothing is fitted: networks and sizes are those of the source, machines the shipped files. The error is
(predicted - printed) / printed. docs/published.md has the table, the sources and the reasons of the errors.

python -m benchmarks.papers.printed_times [NAME ...] > table.md  # NAME: begin of a row's group, such as wan21
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.papers.printed_numbers import cosmoflow
from synth.machine.file import load_machine
from synth.network.file import parse_network
from synth.network.graph import Network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest

NETWORKS = Path(__file__).resolve().parents[2] / "examples/networks"
IMAGES, EPOCHS = 1_281_167, 90  # ImageNet's training set; epochs of Dryden et al., SC'19, section 6.3


@dataclass(frozen=True)
class Row:
    """One printed time. axes: what the source cut; "" for a free plan. printed: seconds."""

    group: str
    what: str
    network: Callable[[], Network]
    machine: str
    procs: int
    printed: float
    axes: str = ""
    training: bool = True

    def predicted(self) -> float:
        """Seconds of the plan within the axes, by the machine's file."""
        request = NetworkRequest(
            self.procs,
            "time",
            training=self.training,
            machine=load_machine(self.machine),
            batch_norm="local" if self.training else "global",
            whole_weights=self.training,
            resident_weights=not self.training,
            axes=self.axes,
            strict_axes=False,
        )
        return plan_network(self.network(), request).cost


# -- the decoders of Wan (`AutoencoderKLWan` of diffusers), as network files


class _Decoder:
    """Writes the layers of a decoder, one after the other."""

    def __init__(self, name: str, latent: tuple[int, ...]) -> None:
        shape = ", ".join(map(str, latent))
        self.lines = [f"network: {name}", f"input: [1, {shape}]", "dtype: bfloat16", "layers:"]
        self.last, self.count, self.channels = "input", 0, latent[0]

    def add(self, kind: str, arguments: str = "", others: str = "") -> str:
        self.count += 1
        name = f"n{self.count}"
        sources = f"from: [{self.last}{others}]"
        self.lines.append(f"  - {{name: {name}, {kind}: {{{arguments}}}, {sources}}}")
        self.last = name
        return name

    def conv(self, out: int, frames: int = 3, size: int = 3) -> None:
        """Causal in the frames."""
        padding = f"[[{frames - 1}, 0], {size // 2}, {size // 2}]"
        kernel = f"[{frames}, {size}, {size}]"
        self.add("conv3d", f"out_channels: {out}, kernel: {kernel}, padding: {padding}")
        self.channels = out

    def norm(self) -> None:
        """Root mean square over channels, and silu."""
        self.add("layernorm", f"parameters: {self.channels}")
        self.add("relu")

    def residual(self, out: int) -> None:
        start, before = self.last, self.channels
        self.norm()
        self.conv(out)
        self.norm()
        self.conv(out)
        end = self.last
        if before != out:
            self.last, self.channels = start, before
            self.conv(out, 1, 1)
            start, self.last = self.last, end
        self.add("add", others=f", {start}")

    def attention(self) -> None:
        """Of one head in each frame; its product is left out, 1 % of the operations."""
        start, width = self.last, self.channels
        self.add("layernorm", f"parameters: {width}")
        self.conv(3 * width, 1, 1)
        self.conv(width, 1, 1)
        self.add("add", others=f", {start}")

    def upsample(self, out: int, frames: int) -> None:
        """Doubled frames but for the first, doubled rows and columns.

        A convolution of three frames to twice the channels, which become frames, is a transposed
        convolution of six taps and stride 2: the same operations on the same words.
        """
        if frames:
            size = f"out_channels: {self.channels}, kernel: [6, 1, 1], stride: [2, 1, 1], padding: [2, 0, 0]"
            self.add("conv3d", f"{size}, transposed: true")
            self.add("reindex", f"rows: [[2, 1, {2 * frames - 1}]]")
        self.add("upsample", "scale: [1, 2, 2]")
        self.conv(out, 1, 3)

    def network(self) -> Network:
        return parse_network("\n".join(self.lines) + "\n", "wan.yaml")


def wan_decoder(version: str, frames: int, height: int, width: int) -> Network:
    """The decoder of Wan 2.1 or 2.2 at the size of its film."""
    latent = (frames - 1) // 4 + 1
    if version == "2.1":
        made = _Decoder("wan21", (16, latent, height // 8, width // 8))
        stages, out = ((384, 192), (384, 192), (192, 96), (96, 0)), 3
    else:
        made = _Decoder("wan22", (48, latent, height // 16, width // 16))
        stages, out = ((1024, 1024), (1024, 1024), (512, 512), (256, 0)), 12
    made.conv(made.channels, 1, 1)
    made.conv(stages[0][0])
    made.residual(made.channels)
    made.attention()
    made.residual(made.channels)
    for number, (channels, after) in enumerate(stages):
        for _ in range(3):
            made.residual(channels)
        if after:
            made.upsample(after, latent if number < 2 else 0)
            latent = 2 * latent - 1 if number < 2 else latent
    made.norm()
    made.conv(out)
    return made.network()


# -- the rows


def _batched(name: str, samples: int) -> Network:
    """An example network with other samples."""
    text = (NETWORKS / f"{name}.yaml").read_text()
    assert "input: [32," in text
    text = text.replace("input: [32,", f"input: [{samples},")
    return parse_network(text, name)


def rows() -> Iterator[Row]:
    yield from _fast_vae()
    yield from _serving()
    yield from _distconv()
    yield from _channels()


def _fast_vae() -> Iterator[Row]:
    """FastVAE (github.com/nono-Sang/FastVAE), README: 5 s of 16 frames of 1280x720, bf16, A800."""
    printed = {"2.2": (10.336, 6.164, 3.592, 2.245), "2.1": (9.256, 5.452, 3.269, 2.156)}
    for version, seconds in printed.items():
        network = partial(wan_decoder, version, 81, 1280, 720)
        for procs, each in zip((1, 2, 4, 8), seconds, strict=True):
            name = f"wan{version.replace('.', '')}"
            yield Row(f"{name}-a800", "decode", network, "a100", procs, each, training=False)


def _serving() -> Iterator[Row]:
    """SGLang, pull requests 27875 (Wan 2.1, 832x480x81) and 27037 (Cosmos 3, 1280x720x189)."""
    small = partial(wan_decoder, "2.1", 81, 480, 832)
    for procs, each in ((1, 2.6314), (2, 1.8148)):
        yield Row("wan21-h200", "decode", small, "h200", procs, each, training=False)
    large = partial(wan_decoder, "2.2", 189, 720, 1280)
    for procs, each in ((1, 8.93), (4, 5.203)):
        yield Row("cosmos3-h200", "decode", large, "h200", procs, each, training=False)


def _distconv() -> Iterator[Row]:
    """Oyama et al. (2019), sections 5.2 and 5.3; CosmoFlow on Lassen without reading files."""
    wide = partial(cosmoflow, 512, 64)
    yield Row("cosmoflow512", "64 samples, {4, 1}", wide, "lassen", 256, 64 / 218.3, "bd")
    yield Row("cosmoflow512", "64 samples, {8, 1}", wide, "lassen", 512, 64 / 260.0, "bd")
    many = partial(cosmoflow, 512, 128)
    yield Row("cosmoflow512", "128 samples, {2, 2}", many, "lassen", 512, 128 * 3550e9 / 1.42e15, "bdh")
    yield Row("cosmoflow256", "a sample per GPU", partial(cosmoflow, 256, 512), "lassen", 512, 0.070, "b")


def _channels() -> Iterator[Row]:
    """Dryden et al., SC'19, Table 1 and section 6.2: minutes of 90 epochs, divided by their steps."""
    for name, samples, minutes in (
        ("resnet50", 8192, 34.1),
        ("wrn50_2", 4096, 106.9),
        ("wrn50_4", 2048, 432.3),
    ):
        seconds = minutes * 60 / (EPOCHS * IMAGES / samples)
        yield Row(f"sc19-{name}", "samples", partial(_batched, name, samples), "lassen", 256, seconds, "b")
    seconds = 19.9 * 60 / (EPOCHS * IMAGES / 8192)
    network = partial(_batched, "resnet50", 8192)
    yield Row("sc19-resnet50", "space, 4-way x/y", network, "lassen", 1024, seconds, "bhck")


def main(asked: list[str]) -> None:
    """Prints one row each; speedups are over the first row of a group."""
    heads = (
        "group",
        "what",
        "machine",
        "P",
        "printed s",
        "predicted s",
        "error",
        "speedup printed",
        "predicted",
    )
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    first: dict[str, tuple[float, float]] = {}
    for row in rows():
        if asked and not row.group.startswith(tuple(asked)):
            continue
        found = row.predicted()
        printed, predicted = first.setdefault(row.group, (row.printed, found))
        cells = [
            *(row.group, row.what, row.machine, str(row.procs), f"{row.printed:.3f}", f"{found:.3f}"),
            *(f"{found / row.printed - 1:+.0%}", f"{printed / row.printed:.2f}", f"{predicted / found:.2f}"),
        ]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
