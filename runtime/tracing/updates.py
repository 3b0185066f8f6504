"""Buffers that a model updates by what it computes: statistics, codebooks, queues.

Every rank gathers the operands and makes the same change to its whole buffer, in the
order of the calls. A buffer that `forward` replaces gets its new words in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.tracing.expressions import is_computed
from synth.runtime.tracing.recorded import function_name, stored_tensors
from synth.runtime.tracing.unsupported import in_user_code


class Update:
    """A function that changes a tensor in place, as one that gives its new words.

    place: of the tensor among the arguments, or its keyword. Where no other argument
    depends on the input, `after` is the result of the update before.
    """

    __name__ = "update"

    def __init__(self, function: Callable[..., Any], place: int | str) -> None:
        self.function, self.place = function, place

    def __call__(self, *args: Any, after: Any = None, **kwargs: Any) -> torch.Tensor:
        """The new words, in another tensor: later changes leave it as it is."""
        self.function(*args, **kwargs)
        place = self.place
        changed: torch.Tensor = args[place] if isinstance(place, int) else kwargs[place]
        return changed.clone()


class Updates:
    """The updates of buffers that a `Recorder` sees."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder

    def take(
        self, func: Any, nodes: Any, changed: list[torch.Tensor], results: list[Any]
    ) -> bool:
        """Record a change in place of one buffer; whether it is one.

        nodes: the arguments. results: of the function, which are the buffer or none.
        """
        if len(changed) != 1 or any(each is not changed[0] for each in results):
            return False
        (values,) = changed
        name, buffer = self._buffer_of(values)
        if buffer is None:
            return False
        args, kwargs = nodes
        own, _ = self.recorder.nodes[id(values)]
        places = [place for place, each in enumerate(args) if each is own]
        named = [word for word, each in kwargs.items() if each is own]
        if not places and "out" not in named:
            return False
        place: int | str = "out" if "out" in named else places[0]
        held = self._held(buffer)
        if isinstance(place, int):
            args = (*args[:place], held, *args[place + 1 :])
        else:
            kwargs = {**kwargs, place: held}
        if is_computed(own):
            kwargs = {**kwargs, "after": own}
        self._record(name, values, Update(func, place), (args, kwargs))
        with torch._C.DisableTorchFunction():
            self._renew(values, buffer)
        return True

    def take_assigned(self, model: nn.Module) -> None:
        """Record what the model has put in the place of its buffers.

        Raises `ValueError` for what is no buffer, or does not depend on the input.
        """
        recorder = self.recorder
        given = dict(recorder.buffers.values())
        now = dict(model.named_buffers())
        for key, name in stored_tensors(model):
            if recorder.stored.get(key) == name:
                continue
            old, new = given.get(name), now.get(name)
            if old is None or new is None or not recorder.computed(new):
                raise ValueError(_refused(name, old, recorder.place_of(new)))
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise ValueError(
                    f"forward puts a tensor of {tuple(new.shape)} and {new.dtype} in"
                    f" the place of {name}, which has {tuple(old.shape)} and"
                    f" {old.dtype}; keep its shape and dtype"
                )
            node, held = recorder.node(new), self._held(old)
            self._keep_words(held)
            update = Update(torch.Tensor.copy_, 0)
            self._record(name, new, update, ((held, node), {}))

    def _keep_words(self, held: fx.Node) -> None:
        """Let all readers of a buffer have its words of before, also backwards."""
        readers = [each for each in held.users if each.op != "output"]
        if not readers:
            return
        with held.graph.inserting_before(readers[0]):
            kept = held.graph.call_function(torch.clone, (held,))
        kept.meta.update(readers[0].meta)
        kept.meta["value"], kept.meta["expression"] = held.meta["value"], True
        kept.meta["changes"], kept.meta["several"] = False, object()
        kept.meta["region"] = ()
        for reader in readers:
            reader.replace_input_with(held, kept)

    def viewed(self, changed: list[torch.Tensor]) -> set[str]:
        """The buffers of which some tensors are views."""
        buffers, stored = self.recorder.buffers, self.recorder.stored
        views = (each for each in changed if id(each) not in stored)
        memory = {each.untyped_storage()._cdata for each in views}
        return {buffers[each][0] for each in memory & buffers.keys()}

    def _buffer_of(self, values: torch.Tensor) -> tuple[str, torch.Tensor | None]:
        """The buffer that a tensor is, or all of which it shows, as `x.data` does."""
        found = self.recorder.buffers.get(values.untyped_storage()._cdata)
        if found is None:
            return "", None
        name, buffer = found
        with torch._C.DisableTorchFunction():
            same = (values.shape, values.stride(), values.storage_offset()) == (
                buffer.shape,
                buffer.stride(),
                buffer.storage_offset(),
            )
        return (name, buffer) if same else ("", None)

    def _held(self, buffer: torch.Tensor) -> fx.Node:
        """The node of the buffer itself, not of what it was changed to."""
        name = self.recorder.stored[id(buffer)]
        known = self.recorder.graph.find_nodes(op="get_attr", target=name)
        node: fx.Node = known[0] if known else self.recorder.node(buffer)
        return node

    def _record(
        self, name: str, values: torch.Tensor, update: Update, nodes: Any
    ) -> None:
        what = f"forward updates {name} by {function_name(update.function)}"
        if values.requires_grad:
            raise ValueError(
                f"{what} of values that have gradients, so that it would keep the graph"
                f" of every pass; detach them{in_user_code()}"
            )
        node = self.recorder._create("call_function", update, nodes, f"update_{name}")
        if node.meta["region"]:
            raise ValueError(
                f"{what} in a checkpoint, which runs twice; update it outside"
                f"{in_user_code()}"
            )
        node.meta["expression"], node.meta["changes"] = False, True
        node.meta["grad"], node.meta["several"] = False, object()
        self.recorder._remember(values, node)

    def _renew(self, values: torch.Tensor, buffer: torch.Tensor) -> None:
        """Other tensors of the buffer's memory have words of before."""
        node, _ = self.recorder.nodes[id(values)]
        for each in self.recorder.alive_beside(buffer):
            if each is not values and id(each) in self.recorder.nodes:
                self.recorder.nodes[id(each)] = node, -1
        for each in (buffer, values):
            self.recorder.nodes[id(each)] = node, each._version


def _refused(name: str, old: Any, place: str) -> str:
    """In a sentence, what the model does with a buffer; the user's line, if known."""
    if old is None:
        return (
            f"forward registers the buffer {name}{place}, which the ranks would not do;"
            " register it with its values in __init__, or let forward assign a plain"
            " attribute of another name"
        )
    return (
        f"forward puts another tensor in the place of {name}{place}, which does not"
        " depend on the input; register it with these values in __init__, or let"
        " forward assign a plain attribute of another name"
    )
