"""A network plan as its file has it: decisions and costs, without the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from synth.base.notebook import inline_html
from synth.base.tabular import Tabular, flat
from synth.base.units import show_bytes
from synth.layer.axes import PerAxis
from synth.network.plan.cost_text import cost_text, received_of


@dataclass(frozen=True)
class NetworkPlanFile(Tabular):
    """The plan of a network, read from a file and checked; `synth.parallelize` takes it as a plan.

    file: its name, for messages. data: `synth.network-plan/1`, see docs/networks.md. Costs are words that
    one process receives, at most, or seconds, as `objective` says.
    """

    file: str
    data: dict[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The network."""
        return str(self.data["name"])

    @property
    def procs(self) -> int:
        """Processes."""
        return int(self.data["procs"])

    @property
    def objective(self) -> str:
        """ "words" or "time"."""
        return str(self.data["objective"])

    @property
    def cost(self) -> float:
        """Words or seconds, summed over layers and redistributions."""
        return float(self.data["cost"])

    @property
    def grids(self) -> dict[str, PerAxis]:
        """Layer -> its process grid."""
        return {layer["name"]: PerAxis(**layer["grid"]) for layer in self.data["layers"]}

    @property
    def used_bytes(self) -> int:
        """The most bytes that any process holds for one layer, beside what it holds throughout."""
        return int(self.data["memory_words"] * self.data["word_bytes"])

    def records(self) -> list[dict[str, Any]]:
        """A row per planned layer, see `NetworkPlan.records`."""
        return [flat(layer) for layer in self.data["layers"]]

    def to_json(self) -> dict[str, Any]:
        """The data of the file."""
        return self.data

    def _repr_html_(self) -> str:
        """Totals and a row per layer, for notebooks."""
        return inline_html(self)

    def __str__(self) -> str:
        """A summary in one line."""
        cost = cost_text(self.objective, self.cost, received_of(self.data))
        work = "training step" if self.data["pass"] == "training" else "forward pass"
        ratio, best = self.data["ratio"], self.data["best_single"]
        mine, *_ = self.data.get("today") or [{}]
        held = mine.get("memory_bytes")
        memory = (
            f"{show_bytes(self.used_bytes)} for layers, one by one," if held is None else show_bytes(held)
        )
        beside = "" if ratio is None else f", {ratio:.3f} of the best single strategy ({best})"
        return (
            f"{self.name} on {self.procs} processes, {work}: {len(self.data['layers'])} layers, "
            f"{cost}{beside}; {memory} per process"
        )
