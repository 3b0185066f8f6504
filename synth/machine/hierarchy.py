"""The model of a machine: nested levels of links, compute rates and the memory of a rank.

Legend:  α seconds per message   β seconds per byte   γ seconds per byte added locally
Levels are listed from the inside out (node, rack, ...). Rank r is in unit r // ranks of a level. A message
uses the innermost level whose unit contains both ranks. Contention and staging through host memory are
inputs of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from synth.layer.passes import Pass
    from synth.runtime.grid.rules.processors import Processor

Amounts = TypeVar("Amounts", float, "NDArray[np.float64]")
LARGE = 2**25  # bytes from which on glibc gives a freed tensor back, so that the next one gets new pages


@dataclass(frozen=True)
class Level:
    """One level of the network. Times are seconds, sizes bytes."""

    name: str
    ranks: int | None  # ranks in one unit of this level; None for any number (outermost level only)
    alpha: float  # per message
    beta: float  # per byte of long messages
    base: float = 0.0  # once per collective, or exchange of messages
    small: tuple[tuple[int, float], ...] = ()  # (bytes, β of messages shorter than that), ascending
    pieces: tuple[tuple[int, float], ...] = ()  # the same of the pieces of all-gathers and reduce-scatters
    links: int | None = None  # links out of one unit of the level below; None: one per rank
    contention: float = 1.0  # factor for other traffic on every link
    staging_alpha: float = 0.0  # per message, for the copy through host memory
    staging_beta: float = 0.0  # per byte, for the copy through host memory

    def per_byte(self, size: float) -> float:
        """β of a message of `size` bytes."""
        return next((beta for below, beta in self.small if size < below), self.beta)

    def shared(self, flows: float) -> float:
        """The factor on β if `flows` messages leave one unit of the level below at once."""
        flows_per_link = 1.0 if self.links is None else max(1.0, flows / self.links)
        return flows_per_link * self.contention

    def message(self, size: float, flows: float = 1.0) -> float:
        """Seconds of one message of `size` bytes if `flows` messages share the links of a unit."""
        beta = self.per_byte(size) * self.shared(flows) + self.staging_beta
        return self.alpha + self.staging_alpha + size * beta

    def exchange(self, size: float, flows: float = 1.0, messages: float = 1.0) -> float:
        """Seconds in which a rank receives `size` bytes from others in some messages."""
        return self.base + self.message(size, flows) + (messages - 1) * self.message(0.0)

    def piece(self, size: float, flows: float = 1.0) -> float:
        """The same of a piece of an all-gather or a reduce-scatter; short ones may go by other means."""
        beta = next((beta for below, beta in self.pieces if size < below), self.per_byte(size))
        return self.alpha + self.staging_alpha + size * (beta * self.shared(flows) + self.staging_beta)


@dataclass(frozen=True)
class Compute:
    """Compute rates of one rank: `rate` in floating-point operations per second, `bandwidth` in bytes/s.

    `rate` holds for dtypes that `rates` does not list. A convolution or product takes `overhead`,
    its operations by their rate, In and Out by `stream`, Ker by `weights`, and dKer by `gradients`. Libraries
    reorder Ker.
    Large tensors that it makes take `fresh`. A pooling takes `tap` for each word that a window reads.
    """

    rate: float
    bandwidth: float | None = None  # memory traffic of element-wise layers and the weight update
    gamma: float = 0.0  # seconds per byte added in a reduction
    overhead: float = 0.0  # seconds per kernel call
    narrow: tuple[tuple[int, float], ...] = ()  # (channels, rate below that many channels), ascending
    rates: tuple[tuple[str, float], ...] = ()  # (dtype, its rate)
    stream: float | None = None  # bytes/s of In and Out of a kernel, beside its operations; None: no limit
    weights: float | None = None  # bytes/s of Ker, likewise
    gradients: float | None = None  # bytes/s of dKer, which a kernel writes; None: as Ker
    tap: float = 0.0  # seconds per word that a window of a pooling reads, in the forward pass
    fresh: float = 0.0  # seconds per byte of new tensors of `LARGE` bytes or more, beside all else
    dispatch: float = 0.0  # seconds of a step of a network beside its kernel, in a pass
    shared: float = 0.0  # seconds that a normalization takes more if it exchanges its statistics, likewise
    exchange: float = 0.0  # seconds that a planned layer takes more if it exchanges words, in a pass
    crowd: float = 1.0  # seconds of a kernel if all ranks compute, over one per host: they share cores

    def new(self, size: Amounts) -> Amounts:
        """Seconds of the pages of a new tensor of `size` bytes; of each size in an array."""
        return self.fresh * size * (size >= LARGE)

    def moving(self, read: Amounts, weights: Amounts, written: Amounts, pass_: Pass = "forward") -> Amounts:
        """Seconds of a kernel beside its operations and overhead, by the bytes of its tensors.

        weights: of Ker, or of dKer, which the backward-filter pass writes.
        A library makes three tensors in a call: the result, and copies in its own order of what it reads and
        writes. On average over the passes they are 1.5 times as large as In and Out together.
        """
        streamed = (read + written) / self.stream if self.stream else 0.0 * read
        rate = self.gradients if pass_ == "backward-filter" and self.gradients else self.weights
        streamed = streamed + weights / rate if rate else streamed
        return streamed + 1.5 * (self.new(read) + self.new(written))

    def rate_of(self, channels: Amounts, dtype: str = "") -> Amounts:
        """The rate of a local kernel. `channels`: the lesser of its input and output channels.

        Few channels slow every dtype by the same factor.
        """
        factor: Any = 1.0
        for below, rate in reversed(self.narrow):
            few = channels < below
            factor = few * (rate / self.rate) + (1 - few) * factor
        wide = next((rate for name, rate in self.rates if name == dtype), self.rate)
        return factor * wide  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, because many caches have it as a key
class Machine:
    """A machine: levels from the inside out, compute rates, memory per rank in bytes."""

    name: str
    levels: tuple[Level, ...]
    compute: Compute
    limit_bytes: int | None = None
    overlap: float = 1.0  # fraction of streamed communication that can overlap with computing, 0 to 1
    algorithms: tuple[str, ...] = ()  # allowed algorithms of collectives; () for all
    source: str = ""
    kinds: dict[str, str] = field(default_factory=dict, compare=False)  # entry -> measured, assumed, ...
    errors: dict[str, float] = field(default_factory=dict, compare=False)  # of measured numbers, relative
    processors: tuple[Processor, ...] = ()  # of which the ranks may have any; () if nothing is known

    def inner(self, index: int, procs: int) -> int:
        """The ranks in one unit of the level below level `index`, of `procs` in all."""
        below = self.levels[index - 1].ranks if index else 1
        return min(procs, below or procs)

    def crowded(self, busy: Amounts) -> Amounts:
        """Seconds of computing if `busy` ranks do, over those if all ranks do: 1 or less.

        Ranks that share cores compute faster while others wait. Cores are shared evenly.
        """
        share = self.compute.crowd * busy / (self.most_ranks or 1)
        least = (share + 1 + abs(share - 1)) / 2  # the larger of it and 1
        return least / self.compute.crowd if self.most_ranks and self.compute.crowd > 1 else 0 * busy + 1

    @property
    def most_ranks(self) -> int | None:
        """The number of ranks of the machine, or None if the outermost level has no limit."""
        return self.levels[-1].ranks

    def __str__(self) -> str:
        levels = ", ".join(
            f"{level.name} ({'any number of' if level.ranks is None else level.ranks} ranks, "
            f"α {level.alpha * 1e6:.4g} µs, {1e-9 / level.beta if level.beta else 0:.4g} GB/s)"
            for level in self.levels
        )
        return f"{self.name}: {levels}; {self.compute.rate / 1e12:.4g} Tflop/s per rank"
