"""What every strategy of the oracle starts from, and what it returns per layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from synth.layer.axes import ROW_MAJOR, PerAxis
from synth.machine.collectives import Group, Op, best
from synth.machine.hierarchy import Machine
from synth.machine.rank_groups import group_of
from synth.network.graph import Node
from synth.prediction.profile import LayerTimes


@dataclass(frozen=True)
class LayerCost:
    """One layer under a strategy: seconds per step, and bytes per rank."""

    name: str
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    comm_forward: float = 0.0
    comm_backward: float = 0.0
    exchange: float = 0.0  # of weight gradients
    used_bytes: float = 0.0

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return self.forward + self.backward + self.update

    @property
    def comm(self) -> float:
        """Seconds of communication."""
        return self.comm_forward + self.comm_backward + self.exchange


@dataclass(frozen=True)
class OracleSetting:
    """The inputs of the oracle model.

    nodes, times: the layers that have a loop nest, with their compute times. batch: samples per step.
    file_samples: samples in the shapes of the nodes. groups: p1 of a hybrid strategy. segments: S of a
    pipeline. flows: groups that share a link; None to derive them. reuse: γ. word_bytes: δ.
    """

    nodes: tuple[Node, ...]
    times: tuple[LayerTimes, ...]
    machine: Machine
    procs: int
    batch: int
    file_samples: int
    word_bytes: int
    groups: int | None = None
    segments: int = 8
    flows: float | None = None
    reuse: float = 1.0

    def words(self, node: Node, symbol: str) -> float:
        """Words of a layer: "x" or "y" per sample, "w" or "bi" in all."""
        bias = node.shape[1] if node.bias else 0
        return {
            "x": node.in_words / self.file_samples,
            "y": node.out_words / self.file_samples,
            "w": node.parameters - bias,
            "bi": bias,
        }[symbol]

    def group(self, size: int, stride: int = 1) -> Group:
        """A group of `size` ranks, `stride` apart."""
        grid = PerAxis(b=max(1, self.procs // (size * stride)), c=size, k=stride)
        made = group_of(self.machine, grid, ROW_MAJOR, ("c",))
        if self.flows is None:
            return made
        return replace(made, flows=tuple(self.flows for _ in made.inside))

    def collective(self, op: Op, words: float, group: Group) -> float:
        """Seconds of a collective whose whole buffer has some words."""
        return best(self.machine, op, words * self.word_bytes, group).seconds

    def message(self, words: float, group: Group) -> float:
        """Seconds of one message to a neighbour in a group."""
        if not group.units() or words <= 0:
            return 0.0
        level, _ = group.units()[-1]
        return self.machine.levels[level].message(words * self.word_bytes, group.shared(level))
