"""A traced model on shares: a step for each call of its graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn

from synth.runtime.comm.gradient_buckets import BYTES, Buckets
from synth.runtime.comm.prefetch import wait_prefetches
from synth.runtime.comm.redistribute import Layout, Whole, even, everywhere
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.grid.scatter_gather import share_of
from synth.runtime.grid.word_counter import TrafficCounter
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.finite_check import all_finite, watch
from synth.runtime.layers.placed import Brought, OnMap, Place
from synth.runtime.layers.planned_layer import Planned
from synth.runtime.layers.pooling import Pool
from synth.runtime.layers.replicated_params import Held
from synth.runtime.layers.step import Gathered, Step
from synth.runtime.model.state_dict import load_whole, whole_state
from synth.runtime.model.step_choice import Call, chosen, entry
from synth.runtime.model.trace import traced

Make = Callable[[str, nn.Module, tuple[int, ...]], DistributedLayer | None]


class Network(nn.Module):
    """A model whose activations are shares; see `synth.parallelize`.

    model: the user's, alike on all ranks (rank 0's values are taken).
    make: the planned layer for a name, a module and its input's shape, None for none.
    refuse: raise `ValueError` for a layer that could only be computed from the whole.
    graph: what the model calls; None to trace it here.
    places: by the name of a call, the boxes of all ranks before and after a pooling.
    bucket_bytes: of gradients that are summed in one message; see `Buckets`.
    ahead: layers of which Ker is on its way while one computes; its sums of dKer then
        travel while the gradients of as many are computed.
    check_finite: look for NaN and infinity in what every step makes and in every
        gradient; all ranks then raise `FloatingPointError` with layer and ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        whole: tuple[int, ...],
        make: Make,
        dtype: torch.dtype = torch.float32,
        refuse: bool = False,
        graph: fx.Graph | None = None,
        places: Mapping[str, tuple[tuple[Box, ...], tuple[Box, ...]]] | None = None,
        bucket_bytes: int = BYTES,
        check_finite: bool = False,
        ahead: int = 1,
    ) -> None:
        super().__init__()
        self.training, self.modes = model.training, dict[bool, str]()
        self.make, self.refuse, self.traffic = make, refuse, TrafficCounter()
        self.dtype, self.check_finite = dtype, check_finite
        self.device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self.plain = dict(model.named_modules())
        self.tensors: dict[str, torch.Tensor] = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        for values in self.tensors.values():
            dist.broadcast(values.detach(), src=0)
        self.steps = nn.ModuleDict()
        self.calls: list[tuple[str, tuple[str, ...]]] = []  # step, its inputs
        self.detached: set[str] = set()  # steps without gradients
        self.owners: dict[str, str] = {}  # module of the model -> its step
        self.entries: dict[str, tuple[str, str]] = {}  # key of its state -> step, entry
        self.ready: dict[str, DistributedLayer | None] = {}
        self.layouts: dict[str, Layout] = {}
        self.places = {name: Place(*boxes) for name, boxes in (places or {}).items()}
        for node in (graph or traced(model, whole, dtype)).nodes:
            self._place(node)
        self.saved = {  # what the model saves: values that no step has, else shapes
            key: values.detach().clone() if key not in self.entries else values.shape
            for key, values in model.state_dict().items()
        }
        del self.plain, self.make, self.ready, self.tensors, self.places
        self.names = {step: name for name, step in self.owners.items()}
        self.brings = self._brings(ahead)
        if check_finite:  # before buckets take the gradients
            self._watch_parameters()
        holders: list[Any] = [m for m in self.modules() if hasattr(m, "hand_over")]
        shared = [each for holder in holders for each in holder.hand_over()]
        self.buckets = Buckets(shared, bucket_bytes)

    # -- making ---------------------------------------------------------------------

    def _place(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self.input, value = node.name, node.meta["value"]
                self.layouts[node.name] = self._entry(node, tuple(value.shape))
            case "output":
                self.output = node.all_input_nodes[0].name
                self.modes = node.meta.get("refused", {})
            case "call_module" | "call_function":
                self._add(node)

    def _entry(self, node: fx.Node, whole: tuple[int, ...]) -> Layout:
        """Where the first planned layer owns its input, or an even layout."""
        first = next(iter(node.users), None)
        if first is not None and first.op == "call_module":
            name = str(first.target)
            made = self.ready[name] = self.make(name, self.plain[name], whole)
            if made is not None and whole == made.given.whole:
                windows = getattr(made.program, "WINDOWS", {}).values()
                if all(w.size == n for w, n in zip(windows, whole[2:], strict=False)):
                    return Layout(whole, made.given.boxes)
        return even(whole)

    def _add(self, node: fx.Node) -> None:
        call = self._call(node)
        place = self.places.get(node.name)
        step = self._planned(call, str(node.target))
        step = step or (self._settled(call, node, place) if place else chosen(call))
        step = (step or self._gathered(call)).to(self.device)
        self._set_mode(step, node)
        self.steps[node.name] = step
        if not node.meta.get("grad", True):
            self.detached.add(node.name)
        self.calls.append((node.name, tuple(each.name for each in call.inputs)))
        self.layouts[node.name] = step.layout
        keys = {f"{name}": entry(name, call) for name, _ in call.parameters.values()}
        if call.module is not None:
            name = str(node.target)
            keys = {f"{name}.{each}": each for each in call.module.state_dict()}
            self.owners[name] = node.name
        for key, held in keys.items():
            if key in self.entries:
                raise ValueError(
                    f"{key} is used by two calls, {self.entries[key][0]} and"
                    f" {node.name}; give each its own"
                )
            self.entries[key] = node.name, held

    def _set_mode(self, step: Step, node: fx.Node) -> None:
        """Training or evaluation, as the model's module is."""
        if node.op == "call_module":
            step.training = self.plain[str(node.target)].training
        else:
            step.training = node.meta.get("training", self.training)
        if not isinstance(step, Gathered):  # which has a copy of the module
            step.train(step.training)

    def _call(self, node: fx.Node) -> Call:
        used = node.all_input_nodes
        called = node.op == "call_module"
        name = str(node.target) if called else node.name
        return Call(
            name=name,
            module=self.plain[name] if called else None,
            function=None if called else node.target,  # type: ignore[arg-type]
            args=tuple(node.args),
            kwargs=node.kwargs,
            inputs={n: self.layouts[n.name] for n in used if n.op != "get_attr"},
            parameters={
                n: (str(n.target), self.tensors[str(n.target)])
                for n in used
                if n.op == "get_attr"
            },
            out=tuple(node.meta["value"].shape),
            count=self._counter(name),
        )

    def _planned(self, call: Call, name: str) -> Step | None:
        if call.module is None or len(call.inputs) != 1 or call.parameters:
            return None
        made = self.ready.pop(name, None)
        made = made or self.make(name, call.module, call.source.whole)
        if made is None:
            return None
        given = dict(call.module.named_parameters())
        values = {n: p.detach() for n, p in given.items()}
        shapes = {name: each.shape for name, each in values.items()}
        flat = len(call.source.whole) > 2 and len(call.out) == 2
        kind = OnMap if flat else Planned
        step = kind(made, call.source, call.count, shapes)
        step.load_full_state_dict(values)
        for each, parameter in given.items():
            getattr(made, each).requires_grad_(parameter.requires_grad)
        return step

    def _settled(self, call: Call, node: fx.Node, place: Place) -> Step | None:
        """A pooling where the plan wants it."""
        lies = Layout(call.source.whole, place.before)
        count = self.traffic.counter("halo", 0, node.name)
        inside = replace(call, inputs={next(iter(call.inputs)): lies}, count=count)
        step = chosen(inside)
        if isinstance(step, Pool):
            step.lay_out(place.after)
        moves = self._counter(node.name)
        return None if step is None else Brought(step, call.source, lies, moves)

    def _gathered(self, call: Call) -> Step:
        what = getattr(call.function, "__name__", call.name)
        if self.refuse:
            raise ValueError(f"{what} ({call.name}) cannot be computed from shares")
        if dist.get_rank() == 0:
            print(f"{call.name}: gathered, every rank computes it", file=sys.stderr)
        inputs, out = list(call.inputs.values()), call.out
        if call.module is not None:
            return Gathered(_unused, inputs, out, call.count, module=call.module)
        values = {entry(name, call): v for name, v in call.parameters.values()}
        lies = {name: everywhere(v.shape) for name, v in values.items()}
        held = Held(values, lies, call.count)
        return Gathered(call.filled(), inputs, out, call.count, held)

    def _counter(self, name: str) -> Callable[[int], None]:
        return self.traffic.counter("move", 0, name)

    def _brings(self, ahead: int) -> dict[str, list[Planned]]:
        """Step -> the planned layers of which Ker is brought before it computes."""
        planned = [s for s, _ in self.calls if isinstance(self.steps[s], Planned)]
        brings = dict[str, list[Planned]]()
        for place, step in enumerate(planned if ahead else []):
            before = planned[max(0, place - ahead)]
            brings.setdefault(before, []).append(self.steps[step])  # type: ignore[arg-type]
        return brings

    # -- use ------------------------------------------------------------------------

    def forward(self, share: torch.Tensor) -> torch.Tensor:
        """This rank's share of the output, from its share of the input."""
        if share.shape != shape(self.layouts[self.input].mine):
            raise ValueError(
                f"rank {dist.get_rank()} owns an input of"
                f" {shape(self.layouts[self.input].mine)}, but was given"
                f" {tuple(share.shape)}; `scatter(batch)` cuts it"
            )
        wait_prefetches()  # what a step that broke off left on its way
        grads = torch.is_grad_enabled()
        values = {self.input: self._looked(self.input, share)}
        for step, sources in self.calls:
            for later in self.brings.get(step, ()):
                later.prefetch()
            with torch.set_grad_enabled(grads and step not in self.detached):
                made = self.steps[step](*(values[name] for name in sources))
                values[step] = self._looked(step, made)
        return values[self.output]

    def train(self, mode: bool = True) -> Network:
        """Put all steps into training or evaluation.

        Raises `ValueError` where the model's forward then does otherwise.
        """
        if mode in self.modes:
            raise ValueError(self.modes[mode])
        super().train(mode)
        return self

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes in here add up; the next one outside sums them over ranks.

        For batches that are given in parts. It is the sums of shared parameters that
        wait; weights have one owner and their gradients are complete at once.
        """
        return self.buckets.later()

    def _looked(self, step: str, values: torch.Tensor) -> torch.Tensor:
        """What a step made, looked at with its gradient to come where that is asked."""
        if self.check_finite:
            name = self.names.get(step, step)
            all_finite(f"{name}: Out", values, _nowhere)
            watch(f"{name}: dOut", values, _nowhere)
        return values

    def _watch_parameters(self) -> None:
        """Look at the gradients of what is not planned; planned layers do so."""
        for key, step in self.steps.items():
            if not isinstance(step, Planned):
                for name, parameter in step.named_parameters():
                    what = f"{self.names.get(key, key)}: d{name.rpartition('.')[2]}"
                    watch(what, parameter, _nowhere)

    def scatter(self, batch: torch.Tensor, like: str | None = None) -> torch.Tensor:
        """This rank's share of a whole batch, or of whole targets like the output.

        like: "input" or "output", where the two have one shape but other owners.
        """
        sides = {"input": self.layouts[self.input], "output": self.layouts[self.output]}
        if like is not None and like not in sides:
            raise ValueError(f"a batch is like input or output, not like {like!r}")
        wanted = sides if like is None else {like: sides[like]}
        fits = [lies for lies in wanted.values() if lies.whole == batch.shape]
        if not fits:
            shapes = " nor ".join(f"{s} of {wanted[s].whole}" for s in wanted)
            raise ValueError(f"a batch of {tuple(batch.shape)} is no {shapes}")
        if fits[0].boxes != fits[-1].boxes:
            raise ValueError(
                f"a batch of {tuple(batch.shape)} may be input or output, which lie"
                " differently; add like='input' or like='output'"
            )
        return share_of(batch, fits[0].mine)

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        """The whole output on every rank, from the shares of all.

        Compute the loss from it alike on every rank: its gradient is taken once.
        """
        count = self._counter(self.output)
        whole: torch.Tensor = Whole.apply(share, self.layouts[self.output], count)  # type: ignore[no-untyped-call]
        return whole

    def received(self) -> int:
        """TrafficCounter that this rank received, between layers and in them."""
        layers = (m for m in self.modules() if isinstance(m, DistributedLayer))
        inside = sum(layer.traffic.received()["total"] for layer in layers)
        return inside + sum(self.traffic.steps.values())

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the user's model would save, on every rank."""
        return whole_state(self.steps, self.entries, self.saved)

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take the shares of what the user's model saved.

        Raises `ValueError` with the first key that differs from the model's.
        """
        load_whole(state, self.steps, self.entries, self.saved)


def _nowhere(rank: int) -> str:
    """A rank's place on the grid, where there is none."""
    return ""


def _unused(*values: Any) -> torch.Tensor:
    raise AssertionError(values)
