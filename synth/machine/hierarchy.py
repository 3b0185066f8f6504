"""A machine as numbers: nested levels of links, a compute rate and a memory per rank.

Legend:  α seconds per message   β seconds per byte   γ seconds per byte added up locally
Levels are listed from the inside out (node, rack, ...). Rank r lies in unit r // ranks of a level. A message
travels on the innermost level that holds both ends. Contention and staging are inputs: nothing in this
package assumes how many messages share a link or whether a transfer passes through host memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Level:
    """One level of the network. Times are seconds, sizes bytes."""

    name: str
    ranks: int | None  # ranks in one unit of this level; None for as many as there are (outermost only)
    alpha: float  # per message
    beta: float  # per byte, for messages on the plateau
    base: float = 0.0  # once per collective
    small: tuple[tuple[int, float], ...] = ()  # (bytes, β of messages shorter than that), ascending
    links: int | None = None  # links out of one unit of the level below; None: one per rank
    contention: float = 1.0  # further flows that share every link
    staging_alpha: float = 0.0  # per message that passes through host memory
    staging_beta: float = 0.0  # per byte that does

    def per_byte(self, size: float) -> float:
        """β for a message of some bytes."""
        return next((beta for below, beta in self.small if size < below), self.beta)

    def shared(self, flows: float) -> float:
        """By how much each flow slows down when `flows` leave one unit of the level below at once."""
        crowd = 1.0 if self.links is None else max(1.0, flows / self.links)
        return crowd * self.contention

    def message(self, size: float, flows: float = 1.0) -> float:
        """Seconds of one message of `size` bytes while `flows` messages share the links of a unit."""
        beta = self.per_byte(size) * self.shared(flows) + self.staging_beta
        return self.alpha + self.staging_alpha + size * beta


@dataclass(frozen=True)
class Compute:
    """What one rank computes: `rate` in floating-point operations per second, `bandwidth` in bytes/s."""

    rate: float
    bandwidth: float | None = None  # memory traffic of element-wise layers and the weight update
    gamma: float = 0.0  # seconds per byte summed in a reduction
    overhead: float = 0.0  # seconds per kernel call
    narrow: tuple[tuple[int, float], ...] = ()  # (channels, rate with fewer in or out than that), ascending

    def rate_of(self, channels: int) -> float:
        """The rate of a local kernel with so many input or output channels, whichever are fewer."""
        return next((rate for below, rate in self.narrow if channels < below), self.rate)


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: a machine is a key of many caches
class Machine:
    """Levels from the inside out, compute rate, memory per rank in bytes."""

    name: str
    levels: tuple[Level, ...]
    compute: Compute
    limit_bytes: int | None = None
    overlap: float = 1.0  # share of streamed communication that may hide behind computing, 0 to 1
    algorithms: tuple[str, ...] = ()  # collective algorithms to choose from; () for all
    source: str = ""
    kinds: dict[str, str] = field(default_factory=dict, compare=False)  # number -> measured, assumed, ...

    def level_of(self, one: int, other: int) -> int:
        """Index of the innermost level that holds two ranks."""
        for index, level in enumerate(self.levels):
            if level.ranks is None or one // level.ranks == other // level.ranks:
                return index
        return len(self.levels) - 1

    def inner(self, index: int, procs: int) -> int:
        """Ranks in one unit of the level below level `index`."""
        below = self.levels[index - 1].ranks if index else 1
        return min(procs, below or procs)

    @property
    def most_ranks(self) -> int | None:
        """Ranks of the whole machine; None where the outermost level has no end."""
        return self.levels[-1].ranks

    def __str__(self) -> str:
        levels = ", ".join(
            f"{level.name} ({'any number of' if level.ranks is None else level.ranks} ranks, "
            f"α {level.alpha * 1e6:.4g} µs, {1e-9 / level.beta if level.beta else 0:.4g} GB/s)"
            for level in self.levels
        )
        return f"{self.name}: {levels}; {self.compute.rate / 1e12:.4g} Tflop/s per rank"
