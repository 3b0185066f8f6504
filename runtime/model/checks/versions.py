"""What a backward pass reads must be as the forward pass read it.

torch counts the changes of each tensor in place, and its backward pass refuses a tensor
that it saved and that has another count. A network saves shards and gathered slices,
which are other tensors than those that the user has. So it remembers the counts of the
inputs, parameters and buffers themselves. They are compared before a word moves.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from synth.runtime.grid.ranks import Ranks
from synth.runtime.tensor.partitioned import PartitionedTensor, own_words

MOST = 24  # letters for the outputs that a loss reaches


class Versions:
    """The tensors that a backward pass reads, with the counts of their changes."""

    def __init__(self) -> None:
        self.known: list[tuple[str, Callable[[], Any], tuple[int, ...]]] = []

    def remember(
        self, name: str, values: torch.Tensor, saved: Iterable[torch.Tensor] = ()
    ) -> None:
        """Note a tensor of the user, with its name for messages.

        saved: what the network has of it. A tensor that is saved itself is kept, as its
        views may change it; any other may go when the user drops it.
        """
        if values.is_inference():  # which counts nothing, as in torch
            return
        memory = own_words(values).untyped_storage()._cdata
        own = any(each.untyped_storage()._cdata == memory for each in saved)
        found: Callable[[], Any] = (lambda: values) if own else weakref.ref(values)
        self.known.append((name, found, counts(values)))

    def changed(self) -> str | None:
        """The name of the first tensor that was changed; None for none."""
        for name, found, before in self.known:
            values = found()
            if values is not None and counts(values) != before:
                return name
        return None


class Before:
    """What the ranks do before the backward pass of a forward pass.

    text: what it is called in messages. versions: of what it reads. outputs: for each,
    the node of autograd at which its gradient comes, which is not kept alive. latest:
    the last backward pass of any network, as autograd numbers them, and the id of its
    ranks, which are not kept alive.
    """

    latest: tuple[int, int] = -1, 0

    def __init__(
        self, ranks: Ranks, text: Callable[[], str], versions: Versions
    ) -> None:
        self.ranks, self.text, self.versions = ranks, text, versions
        self.outputs: list[weakref.ref[Any] | None] = []

    def begins_at(self, outputs: Iterable[torch.Tensor]) -> None:
        """Note what the forward pass gives."""
        nodes = [each.grad_fn for each in outputs]
        self.outputs = [None if e is None else weakref.ref(e) for e in nodes]

    def _reached(self, output: int) -> str:
        """The outputs that the loss reaches, for messages; "" for all.

        output: one of them. torch tells nothing of a node at which all begins.
        """
        runs: Any = torch._C._will_engine_execute_node
        nodes = [found and found() for found in self.outputs]
        pairs = enumerate(nodes)
        reached = [n for n, node in pairs if n == output or (node and runs(node))]
        if len(reached) == len(nodes):
            return ""
        said = ", ".join(map(str, reached))
        if len(said) > MOST:
            said = f"{len(reached)}, digest {zlib.crc32(said.encode()):x}"
        return f" from outputs {said} of {len(nodes)}"

    def __call__(self, output: int) -> None:
        """Agree with the ranks of all replicas, then refuse what was changed.

        output: the place of that to which a gradient has come.

        Raises `RuntimeError` on all ranks for a changed tensor, `NotImplementedError`
        if gradients of a network are to have gradients.
        """
        Before.latest = torch._C._current_graph_task_id(), id(self.ranks)
        what, changed = self.text() + self._reached(output), self.versions.changed()
        if torch.is_grad_enabled():
            raise NotImplementedError(
                f"create_graph=True in the {what}: layers on several ranks have no"
                " second derivative; compute the penalty from the model in one process"
            )
        if changed is None:
            self.ranks.require_all(what)
            return
        self.ranks.require_all(f"{what}, behind a change of {changed}")
        raise RuntimeError(
            f"the {what} needs {changed} as it was, but it has been modified by an"
            " inplace operation since (an optimizer's step, load_state_dict, copy_);"
            " call backward() before, or change a clone()"
        )


def counts(values: torch.Tensor) -> tuple[int, ...]:
    """How often a tensor, and the own part of a partitioned one, was changed.

    torch counts no changes of `values.data`; a partitioned tensor does.
    """
    seen = values.changes[0] if isinstance(values, PartitionedTensor) else 0
    return values._version, own_words(values)._version, seen


def of_pass(
    read: Mapping[str, torch.Tensor | None],
    inputs: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
) -> Versions:
    """The versions of all tensors that a forward pass has read.

    read: key -> parameter or buffer. inputs: name -> the user's tensor and the shard of
    it.
    """
    found = Versions()
    for key, values in read.items():
        if values is not None:
            found.remember(key, values, [own_words(values)])
    for name, (batch, shard) in inputs.items():
        label = "the batch" if len(inputs) == 1 else f"the batch {name}"
        found.remember(label, batch, [shard])
    return found


def stored(module: nn.Module, name: str) -> torch.Tensor | None:
    """A parameter or buffer of a module; None for what a parametrization computes."""
    found = module._parameters.get(name)
    return module._buffers.get(name) if found is None else found
