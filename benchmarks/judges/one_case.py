"""What every rank does with a case: the network on ranks beside the same network in one process."""

from __future__ import annotations

import contextlib
import copy
import io
import linecache
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import synth
from benchmarks.judges.cases import CRASH, EQUAL, MISCOUNTED, REFUSED, WRONG, Case
from benchmarks.judges.embedded import Embedded
from benchmarks.judges.prepared import Prepared, doubled, prepared
from synth.base.errors import SynthError
from synth.runtime.model.network import Network

ALLOWED = 1e-8  # of float64, relative to the largest word
ROUNDING = 1.6e-2  # of bfloat16: torch's own tolerance
LAST_BIT = 2.0**-7  # of bfloat16
OWN_ROUNDING = 4.0  # times what bfloat16 changes in one process
SAID = ValueError, NotImplementedError, RuntimeError, TypeError, SynthError  # what refuses
STEP = 0.01  # the largest change of a parameter
SEEDS = 4, 5, 6, 7, 8
Tensors = list[torch.Tensor]


class Comparison:
    """What differs between ranks and one process.

    noise: name -> how far bfloat16 takes a value in one process, for bfloat16.
    """

    def __init__(self, rounded: bool, noise: Callable[[], dict[str, float]]) -> None:
        self.rounded, self.noise = rounded, noise
        self.found: dict[str, float] = {}

    def __call__(self, name: str, ours: Any, right: Any, exact: Any = None) -> None:
        """Compare a tensor of the ranks with that of one process, and with that in float64."""
        ours, right = whole(ours).detach(), right.detach()
        off = self.off(ours, right)
        if self.rounded and 0 < off < float("inf"):
            own = self.off(exact.detach(), right.double()) if exact is not None else 0.0
            off = max(0.0, off - ROUNDING - OWN_ROUNDING * own)
            if off:  # one process may have been lucky
                off = max(0.0, off - OWN_ROUNDING * self.noise().get(name, 0.0) / largest(right))
        elif off <= ALLOWED:
            off = 0.0
        if off:
            self.found[name] = off

    def off(self, ours: torch.Tensor, right: torch.Tensor) -> float:
        """The largest difference relative to the largest word; infinite for another shape, dtype, or NaNs."""
        if (ours.shape, ours.dtype) != (right.shape, right.dtype):
            return float("inf")
        if not ours.numel():
            return 0.0
        if ours.is_complex():
            ours, right = (torch.view_as_real(each.resolve_conj()) for each in (ours, right))
        if not ours.is_floating_point():  # rounding may decide between two integers
            return 0.0 if self.rounded or torch.equal(ours, right) else float("inf")
        if not torch.equal(ours.isnan(), right.isnan()) and not self.rounded:
            return float("inf")
        return apart(ours, right) / largest(right)


def largest(right: torch.Tensor) -> float:
    """The largest word, beside which differences are counted; 1 where all are zero."""
    top = float(finite(right).abs().max()) if right.numel() else 0.0
    return top if top > 1e-12 else 1.0


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference of two words."""
    return float((finite(one) - finite(other)).abs().max()) if one.numel() else 0.0


def finite(values: torch.Tensor) -> torch.Tensor:
    """In float64, without infinities and NaNs."""
    return values.detach().double().nan_to_num(0.0, 1e300, -1e300)


def whole(values: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor of the network."""
    return values.full_tensor() if hasattr(values, "full_tensor") else values


def judged(case: Case) -> dict[str, Any]:
    """What this rank finds, as fields of `Outcome`; no verdict where torch alone refuses the case."""
    begin = time.perf_counter()
    try:
        right = Right(case)
    except Exception as error:
        return {"void": f"{type(error).__name__}: {error}"[:300]}
    trial = Trial(case, right)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = trial.run()
    except Exception as error:
        found = ended(error, trial.stage)
    gathered = "gathered" in said.getvalue()
    shown = {"grid": right.made.grid, "random": right.random, "gathered": gathered}
    return {**found, **shown, "seconds": round(time.perf_counter() - begin, 2)}


class Right:
    """The case in one process: outputs and gradients, and for bfloat16 the same in float64."""

    def __init__(self, case: Case) -> None:
        self.case, self.made = case, prepared(case)
        made = self.made
        self.model = copy.deepcopy(made.model)
        self.inputs = leaves(made.inputs)
        torch.manual_seed(3)
        self.outs = results(self.model, self.inputs)
        self.random = any(self._otherwise(seed) for seed in SEEDS)
        generator = torch.Generator().manual_seed(5)
        self.weights = [torch.randn(each.shape, generator=generator).to(each.dtype) for each in self.outs]
        loss = loss_of(self.outs, self.weights)
        self.trains = loss is not None and self._has_gradients(loss)
        self.exact: Right | None = None
        if case.dtype != "float64":
            with contextlib.suppress(Exception):
                self.exact = _alone(*doubled(prepared(case)), [each.double() for each in self.weights])

    def _has_gradients(self, loss: torch.Tensor) -> bool:
        """Compute gradients. Whether torch has a derivative; else outputs alone are compared."""
        try:
            loss.backward()  # type: ignore[no-untyped-call]
        except RuntimeError:  # NotImplementedError, too
            return False
        return True

    def _otherwise(self, seed: int) -> bool:
        """Whether another seed gives other outputs."""
        torch.manual_seed(seed)
        again = results(copy.deepcopy(self.made.model), self.made.inputs)
        return not alike(self.outs, again)

    @cached_property
    def noise(self) -> dict[str, float]:
        """Name of an output or a gradient -> how far bfloat16 takes it, in words.

        All that goes in is changed by its last bit, five times: how far the values are then from those of
        float64, or those of float64 from what they were. One run may happen to be exact where words cancel.
        """
        found: dict[str, float] = {}
        before = {} if self.exact is None else self.exact.values()
        for seed in SEEDS if before else ():
            rounded, made = (_moved(prepared(self.case), seed) for _ in range(2))
            weights = _last_bits(self.weights, seed)
            near = _alone(rounded.model, rounded.inputs, weights).values()
            exact = _alone(*doubled(made), [each.double() for each in weights]).values()
            for name in before.keys() & near.keys() & exact.keys():
                off = max(apart(near[name], exact[name]), apart(before[name], exact[name]))
                found[name] = max(found.get(name, 0.0), off)
        return found

    def values(self) -> dict[str, torch.Tensor]:
        """Outputs and gradients by the names under which they are compared."""
        found = {f"output {n}": each for n, each in enumerate(self.outs)}
        held = {f"gradient of {name}": each.grad for name, each in self.model.named_parameters()}
        held |= {f"gradient of input {n}": each.grad for n, each in enumerate(self.inputs)}
        return found | {name: each for name, each in held.items() if each is not None}

    def evaluated(self) -> Tensors:
        """What the model gives in evaluation."""
        return results(self.model.eval(), self.inputs)


def _alone(model: nn.Module, inputs: Tensors, weights: Tensors) -> Right:
    """Outputs and gradients of a model and inputs."""
    made: Right = Right.__new__(Right)
    made.model, made.inputs = model, leaves(inputs)
    made.outs = results(made.model, made.inputs)
    loss = loss_of(made.outs, weights)
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    return made


def _moved(made: Prepared, seed: int) -> Prepared:
    """Parameters and inputs that differ by their last bit, or not at all."""
    parameters = [each.detach() for each in made.model.parameters()]
    for each, values in zip(parameters, _last_bits(parameters, seed), strict=True):
        each.copy_(values)
    return replace(made, inputs=_last_bits(made.inputs, seed))


def _last_bits(given: Sequence[torch.Tensor], seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randint(-1, 2, each.shape, generator=generator) for each in given]
    return [
        each * (1 + LAST_BIT * bits).to(each.dtype) if each.is_floating_point() else each
        for each, bits in zip(given, drawn, strict=True)
    ]


def alike(some: Tensors, others: Tensors) -> bool:
    """Whether tensors are equal, NaN for NaN."""
    return all(torch.equal(*map(torch.nan_to_num, both)) for both in zip(some, others, strict=True))


def leaves(inputs: Sequence[torch.Tensor]) -> Tensors:
    """Copies of inputs that ask for gradients where they can."""
    return [each.clone().requires_grad_(each.is_floating_point()) for each in inputs]


def results(net: nn.Module, inputs: Sequence[torch.Tensor], model: nn.Module | None = None) -> Tensors:
    """What a network gives; of outputs, what the call gives on them. model: that which holds the call."""
    outs = net(*inputs)
    outs = list(outs) if isinstance(outs, tuple | list) else [outs]
    held = net if model is None else model
    if isinstance(held, Embedded) and not held.inside:
        numbers = dict.fromkeys(int(key) for kind, key in held.places.values() if kind == "layer")
        outs = held.called(dict(zip(numbers, outs, strict=True)), inputs)
    return [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in outs]


def loss_of(outs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A sum of all words with weights; None where nothing is trained by it."""
    terms = [(o * w).sum() for o, w in zip(outs, weights, strict=True) if o.requires_grad]
    total: torch.Tensor | None = None
    for each in terms:
        total = each if total is None else total + each
    return total


class Trial:
    """The case on ranks. stage: what it does now."""

    def __init__(self, case: Case, right: Right) -> None:
        self.case, self.right, self.stage = case, right, "parallelize"
        self.compare = Comparison(case.dtype != "float64", lambda: right.noise)
        self.model = copy.deepcopy(right.made.model)

    def run(self) -> dict[str, Any]:
        """All stages. Raises what the network raises."""
        right, made, compare = self.right, self.right.made, self.compare
        net = self.parallelized(made)
        self.stage = "forward"
        inputs = leaves(made.inputs)
        if not right.trains:
            inputs = [each.detach() for each in inputs]
        before = net.received()
        outs = results(net, inputs, self.model)
        exact = right.exact
        if len(outs) != len(right.outs):
            return {
                "verdict": WRONG,
                "why": f"{len(outs)} outputs for {len(right.outs)}",
                "stage": self.stage,
            }
        for n, (ours, theirs) in enumerate(zip(outs, right.outs, strict=True)):
            if right.random:
                theirs = whole(ours).detach() if ours.shape == theirs.shape else theirs
            compare(f"output {n}", ours, theirs, None if exact is None else exact.outs[n])
        words = ""
        if right.trains:
            words = self.backward(net, inputs, outs, before)
        if not right.random:
            self.evaluation(net)
        if compare.found:
            worst = sorted(compare.found.items(), key=lambda pair: -pair[1])[:6]
            return {"verdict": WRONG, "why": "; ".join(f"{name} {off:.2g} off" for name, off in worst)}
        return {"verdict": MISCOUNTED, "why": words} if words else {"verdict": EQUAL}

    def parallelized(self, made: Prepared) -> Network:
        shapes = [
            tuple(each.shape) if each.is_floating_point() and each.dim() else each for each in made.inputs
        ]
        return synth.parallelize(
            self.model,
            synth.Inputs(*shapes),
            plan=made.plan,
            objective="words" if made.plan is None else None,
            input_gradient=self.right.trains,
        )

    def backward(self, net: Network, inputs: Tensors, outs: Tensors, before: int) -> str:
        """Gradients, words, a step of SGD and the state after it. Returns how words differ; "" if not."""
        right, exact = self.right, self.right.exact
        self.stage = "backward"
        loss = loss_of(outs, right.weights)
        if loss is not None:  # else all gradients have to be zero
            loss.backward()  # type: ignore[no-untyped-call]
        received = net.received() - before
        theirs = dict(right.model.named_parameters())
        held = {} if exact is None else dict(exact.model.named_parameters())
        if not right.random:
            for name, parameter in net.named_parameters():
                exact_grad = held[name].grad if name in held else None
                self.gradient(f"gradient of {name}", parameter, theirs[name], exact_grad)
            for n, (ours, other) in enumerate(zip(inputs, right.inputs, strict=True)):
                exact_grad = None if exact is None else exact.inputs[n].grad
                self.gradient(f"gradient of input {n}", ours, other, exact_grad)
        self.stage = "words"
        planned = 0
        if self.inside:
            planned = net.planned_words(input_gradient=True).step[dist.get_rank()]
        self.stage = "step"
        grads = [each.grad for each in right.model.parameters() if each.grad is not None]
        steepest = max((float(each.abs().max()) for each in grads), default=0.0)
        for each in (right.model, net, *([] if exact is None else [exact.model])):
            if steepest < float("inf") and any(True for _ in each.parameters()):
                torch.optim.SGD(each.parameters(), lr=STEP / max(1.0, steepest)).step()
        self.stage = "state"
        if not right.random:
            self.state(net)
        wrong = self.inside and planned != received
        return f"planned {planned}, received {received}" if wrong else ""

    @property
    def inside(self) -> bool:
        """Whether all is in the network."""
        return self.case.base != "outputs"

    def state(self, net: Network) -> None:
        """Compare the state after a step; then that of one process is taken."""
        state, theirs = net.full_state_dict(), self.right.model.state_dict()
        if list(state) != list(theirs):
            self.compare.found["keys of the state"] = float("inf")
            return
        exact = {} if self.right.exact is None else self.right.exact.model.state_dict()
        for name, values in theirs.items():
            self.compare(f"state {name}", state[name], values, exact.get(name))
        net.load_full_state_dict(theirs)

    def gradient(self, name: str, ours: torch.Tensor, theirs: torch.Tensor, exact: Any) -> None:
        """Compare gradients, of which a missing one is zero."""
        if ours.grad is None and theirs.grad is None:
            return
        nothing = torch.zeros_like(theirs)
        mine = nothing if ours.grad is None else ours.grad
        self.compare(name, mine, nothing if theirs.grad is None else theirs.grad, exact)

    def evaluation(self, net: Network) -> None:
        """The forward pass in evaluation; where that is another network, planned anew."""
        self.stage = "evaluation"
        right, made = self.right, self.right.made
        right.model.eval()
        with torch.no_grad():
            theirs = results(right.model, made.inputs)
            torch.manual_seed(6)
            again = results(right.model, made.inputs)
            if not alike(theirs, again):
                return
        try:
            net.eval()
        except ValueError:
            self.model = copy.deepcopy(right.model)
            net = self.parallelized(made)
        with torch.no_grad():
            ours = results(net, made.inputs, self.model.eval())
            exact = [None] * len(theirs) if right.exact is None else right.exact.evaluated()
        for n, each in enumerate(zip(ours, theirs, exact, strict=True)):
            self.compare(f"output {n} in evaluation", *each)


def ended(error: Exception, stage: str) -> dict[str, Any]:
    """A refusal, if a line of the product raises one; a crash if not."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if _is_own(each.filename)]
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    said = isinstance(error, SAID) and _is_own(last.filename) and line.startswith("raise")
    text = f"{type(error).__name__}: {error}".replace("\n", " / ")
    place = f"{_short(own[-1].filename)}:{own[-1].lineno}" if own else ""
    if not own or last is not own[-1]:
        place += f" < {_short(last.filename)}:{last.lineno}"
    return {"verdict": REFUSED if said else CRASH, "why": text[:600], "stage": stage, "place": place}


ROOT = str(Path(synth.__file__).resolve().parents[1])


def _is_own(filename: str) -> bool:
    path = str(Path(filename).resolve())
    return path.startswith(ROOT) and "/site-packages/" not in path and "/benchmarks/" not in path


def _short(filename: str) -> str:
    path = str(Path(filename).resolve())
    return path.removeprefix(f"{ROOT}/") if path.startswith(ROOT) else path.rpartition("/site-packages/")[2]
