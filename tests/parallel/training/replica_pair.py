"""A network on the rows of a mesh, beside as many copies of the model in one process as it has replicas.

The gradients of the copies are averaged as DDP averages them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from replica_copies import average_gradients, mesh_of, share_statistics
from torch import nn
from torch.nn import functional
from training_features.table import PLANS as OF_FOUR
from training_features.table import Small, sizes_of

import synth

PLANS: dict[int, dict[str, Any]] = {  # by the ranks of a replica
    1: {"mixed": None, "uneven": None},
    2: {
        "samples": "data",
        "space": {"h": 2},
        "channels": "filter",
        "mixed": None,
        "uneven": {"conv": {"h": 2}, "grouped": {"k": 2}, "head": {"c": 2}, "": {"w": 2}},
    },
    4: OF_FOUR,
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


class Model(Small):
    """The small model, and a layer with statistics and weights that every rank computes from the whole."""

    def __init__(self, width: int, rows: int, columns: int, classes: int) -> None:
        super().__init__(width, rows, columns, classes)
        self.whole = nn.InstanceNorm2d(width, affine=True, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.whole(self.act(self.bn(self.conv(x))))
        x = functional.silu(self.norm(self.grouped(x)))
        return self.head(self.pool(x).flatten(1))


class Pair:
    """A network on the rows of a mesh, and copies of the model in one process, one for each replica."""

    def __init__(
        self, rows: int, word: str, optimizer: str = "SGD", model: Any = Model, **options: Any
    ) -> None:
        self.sizes, self.rows = sizes_of(word), rows
        torch.manual_seed(3 + dist.get_rank())  # the first rank's values are taken
        mine = model(*self.sizes[1:]).double()
        torch.manual_seed(3)
        first = model(*self.sizes[1:]).double()
        plan = PLANS[4 // rows][word]
        options["input_gradient"] = True
        self.net = synth.parallelize(mine, self.sizes.batch, mesh_of(rows), plan, **options)
        self.me = dist.get_rank() * rows // 4
        self.copies = [copy.deepcopy(first) for _ in range(rows)]
        self.models: list[nn.Module] = [self.net, *self.copies]
        self.optimizers = [OPTIMIZERS[optimizer](each.parameters()) for each in self.models]
        self.generator = torch.Generator().manual_seed(11)
        self.errors = dict[str, float]()

    def near(self, what: str, one: torch.Tensor, other: torch.Tensor) -> None:
        """Note how far two tensors are apart, relative to the largest word."""
        one, other = (whole(each).double() for each in (one, other))
        assert one.shape == other.shape, what
        error = float((one - other).abs().max() / (1 + other.abs().max()))
        self.errors[what] = max(self.errors.get(what, 0.0), error if error == error else 1.0)

    def batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """A batch and its labels for each replica, the same list on all ranks."""
        return [
            (
                torch.randn(self.sizes.batch, generator=self.generator, dtype=torch.float64),
                torch.randint(self.sizes.classes, (self.sizes.samples,), generator=self.generator),
            )
            for _ in range(self.rows)
        ]

    def losses(self, factor: float = 1.0) -> list[torch.Tensor]:
        """That of the network and those of the copies, of new batches; statistics are first made alike."""
        batches = self.batches()
        share_statistics(self.copies)
        outs = [self.net(batches[self.me][0])]
        outs += [each(batch) for each, (batch, _) in zip(self.copies, batches, strict=True)]
        self.near("output", outs[0], outs[1 + self.me])
        labels = [batches[self.me][1], *(each for _, each in batches)]
        losses = [factor * functional.cross_entropy(*each) for each in zip(outs, labels, strict=True)]
        self.near("loss", losses[0], losses[1 + self.me])
        return losses

    def average(self) -> None:
        """Average the gradients of the copies, and compare them with those of the network."""
        average_gradients(self.copies)
        for (name, p), q in zip(self.net.named_parameters(), self.copies[0].parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None), name
            if p.grad is not None and q.grad is not None:
                self.near("gradient", p.grad, q.grad)

    def backward(self, losses: list[torch.Tensor]) -> None:
        """Of all losses."""
        for each in losses:
            each.backward()

    def step(self) -> None:
        """Average the gradients of the copies, and step all optimizers."""
        self.average()
        for each in self.optimizers:
            each.step()
            each.zero_grad()

    def state(self) -> dict[str, float]:
        """All errors, with those of parameters and buffers; the copies of the network are the same."""
        synth.check_replicas(self.net)
        own = self.copies[self.me].state_dict()
        for key, values in self.net.full_state_dict().items():
            self.near("state", values, own[key])
        return self.errors


def whole(values: torch.Tensor) -> torch.Tensor:
    """All words."""
    values = values.detach()
    return values.full_tensor() if hasattr(values, "full_tensor") else values
