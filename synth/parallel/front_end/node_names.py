"""Names of the nodes of a network: those of the model's modules and parameters, each once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synth.layer.validate import MAX_NAME, LayerError, check_name
from synth.network.graph import Node

if TYPE_CHECKING:
    from synth.runtime.operators.call import Call

LONGEST = MAX_NAME - 12  # a network file adds numbers to the names of repeated blocks


@dataclass(frozen=True)
class NodeNames:
    """Chooses names. nodes: name -> node, of the network so far."""

    nodes: Mapping[str, Node]

    def of(self, call: Call) -> str:
        """The name of the module, of a loose parameter, or of the call in the graph; each once."""
        from synth.runtime.tracing.expressions import leaves

        node = call.node
        known: str | None = node.meta.get("name")
        if known is None:
            name = node.name
            if call.module is not None:
                name = str(node.target) or node.name
            elif call.layer is not None and call.layer.operands:
                name = call.owner or node.name
            elif len(call.inputs) == 1:
                names = sorted({name for each in call.parameters for name in leaves(each)})
                owners = {name.rpartition(".")[0] for name in names}
                name = names[0] if len(names) == 1 else owners.pop() if len(owners) == 1 else name
                name = name or node.name
            known = node.meta["name"] = self.free(name)
        return known

    def free(self, name: str) -> str:
        """A name that a network file can have and no node has: its end where it is too long."""
        while len(name) > LONGEST - 4 and "." in name:
            name = name.partition(".")[2]
        try:
            name = check_name(name[-LONGEST:])
        except LayerError:
            name = "layer"
        taken, number, result = {"input", "entry", *self.nodes}, 0, name
        while result in taken:
            number += 1
            result = f"{name}_{number}"
        return result
