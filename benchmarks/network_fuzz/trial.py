"""What every rank does with a drawn network: the same calls on it and on its model in one process."""

from __future__ import annotations

import contextlib
import copy
import io
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree

import synth
from benchmarks.judges.cases import EQUAL, MISCOUNTED, WRONG
from benchmarks.judges.one_case import apart, ended, largest, whole
from benchmarks.network_fuzz.draw import Drawn
from synth.runtime.kernels.channel_sums import CHANNELS_LAST

# relative to the largest word
ALLOWED = {"float64": 1e-8, "float32": 3e-3, "autocast": 5e-2, "bfloat16": 5e-2, "float16": 1e-2}
EPS = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    **dict.fromkeys(("autocast", "bfloat16"), 2.0**-9),
}
# else rounding decides what is computed
STEADY = {"float64": 1e-5, "float32": 1e-2, "autocast": 0.3, "bfloat16": 0.3, "float16": 0.1}
ROUNDING = 30.0  # times what the last bit of inputs changes in one process
Notes = dict[str, torch.Tensor]


def judged(case: Drawn) -> dict[str, Any]:
    """What this rank finds, as fields of `Outcome`; no verdict where torch refuses the network."""
    begin = time.perf_counter()
    try:
        try:
            right = Run(case).run()
        except Exception:  # the second shape fits no network that has numbers of the first
            case = replace(case, options={**case.options, "second": False})
            right = Run(case).run()
    except Exception as error:
        return {"void": f"{type(error).__name__}: {error}"[:300]}
    if any(not _finite(each) for each in right.values()):
        return {"void": "words are infinite"}
    run = Run(case, on_ranks=True)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            ours = run.run()
        found = compared(case, ours, right)
        if "void" in found:
            return found
    except Exception as error:
        found = ended(error, run.stage)
    if found["verdict"] == EQUAL and run.words[0] != run.words[1]:
        found = {"verdict": MISCOUNTED, "why": "planned {}, received {}".format(*run.words)}
    return {**found, "seconds": round(time.perf_counter() - begin, 2)}


def _finite(values: torch.Tensor) -> bool:
    return not values.is_floating_point() or bool(values.isfinite().all())


def compared(case: Drawn, ours: Notes, right: Notes) -> dict[str, Any]:
    """The verdict of values by name."""
    if list(ours) != list(right):
        return {"verdict": WRONG, "why": f"names {sorted(ours.keys() ^ right.keys())[:4]}"}
    allowed = ALLOWED[case.precision]
    wide = (
        case.options["dtype"] == "autocast"
    )  # what forward makes may be of a wider dtype, docs/precision.md
    off = {name: difference(ours[name], each, wide) for name, each in right.items()}
    off = {name: each for name, each in off.items() if not each <= allowed}
    if off:
        moved = [Run(case, noise=seed).run() for seed in (1, 2, 3)]
        noise = {n: max(difference(each[n], right[n], wide) for each in moved) for n in right}
        if max(noise.values()) > STEADY[case.precision]:
            return {"void": "rounding decides"}
        off = {name: each for name, each in off.items() if not each <= allowed + ROUNDING * noise[name]}
    if not off:
        return {"verdict": EQUAL}
    return {
        "verdict": WRONG,
        "why": "; ".join(f"{name} {each:.2g} off" for name, each in list(off.items())[:5]),
    }


def difference(ours: torch.Tensor, right: torch.Tensor, wide: bool = False) -> float:
    """The largest, relative to the largest word; infinite for another shape, dtype or integer.

    wide: whether the dtype may be another one.
    """
    if ours.shape != right.shape or (ours.dtype != right.dtype and not wide):
        return float("inf")
    if not ours.is_floating_point():
        return 0.0 if torch.equal(ours, right) else float("inf")
    if not _finite(ours):
        return float("inf")
    return apart(ours, right) / largest(right) if ours.numel() else 0.0


class Run:
    """One run of a network, on ranks or in one process. words: planned and received, of a first pass."""

    def __init__(self, case: Drawn, on_ranks: bool = False, noise: int = 0) -> None:
        self.case, self.on_ranks, self.noise = case, on_ranks, noise
        self.options = case.options
        self.notes: Notes = {}
        self.stage, self.words = "parallelize", (0, 0)
        self.dtype = getattr(torch, self.options["dtype"].replace("autocast", "float32"))
        self.losses = 0

    def run(self) -> Notes:
        """All values that are compared, by name."""
        case, options = self.case, self.options
        model = case.model().to(self.dtype)
        if options["frozen"]:
            for n, each in enumerate(model.parameters()):
                each.requires_grad_(n % 2 == 1)
        if options["mode"] == "inference":
            model.eval()
        if self.noise:
            generator = torch.Generator().manual_seed(self.noise)
            with torch.no_grad():
                for each in model.parameters():
                    each.copy_(self.moved(each, generator))
            for module in model.modules():
                module.register_forward_hook(lambda _, __, out: laid_anew(self.moved(out, generator)))
        torch.manual_seed(1)
        net: Any = self.parallelized(model) if self.on_ranks else model
        if options["mode"] == "inference":
            self.inference(net)
        else:
            self.training(net)
        return self.notes

    def moved(self, values: Any, generator: torch.Generator) -> Any:
        """Values of which some differ in the last bit."""
        if not isinstance(values, torch.Tensor) or not values.is_floating_point():
            return values
        bits = torch.randint(-1, 2, values.shape, generator=generator).to(values.dtype)
        return values * (1 + 2 * EPS[self.case.precision] * bits)

    def inputs(self, number: int, second: bool = False, gradients: bool = False) -> list[torch.Tensor]:
        made = self.case.batch(number, self.dtype, second)
        if self.noise:
            generator = torch.Generator().manual_seed(self.noise + number)
            made = [self.moved(each, generator) for each in made]
        if self.options["last"]:
            made = [laid_last(each) for each in made]
        return [each.requires_grad_(gradients and each.is_floating_point()) for each in made]

    def parallelized(self, model: nn.Module) -> Any:
        options = self.options
        shapes = [
            tuple(each.shape) if each.is_floating_point() and each.dim() else each for each in self.inputs(0)
        ]
        with self.autocast():
            return synth.parallelize(
                model,
                synth.Inputs(*shapes),
                plan=self.plan(model),
                mode=options["mode"],
                objective=options["objective"],
                recompute=options["recompute"],
                outputs=options["outputs"],
                check=options["check"],
                input_gradient=options["input_gradient"],
            )

    def plan(self, model: nn.Module) -> Any:
        """A grid for all layers that admit it."""
        text, procs = self.options["plan"], self.options["procs"]
        if text is None or len(text) > 2:
            return text
        grid = {text[0]: procs} if len(text) == 1 else {text[0]: 2, text[1]: max(1, procs // 2)}
        layers = [name for name, each in model.named_modules() if "Conv" in type(each).__name__]
        return dict.fromkeys(layers, grid) or None

    def autocast(self) -> Any:
        if self.options["dtype"] != "autocast":
            return contextlib.nullcontext()
        return torch.autocast("cpu", torch.bfloat16)

    def outputs(self, net: Any, inputs: list[torch.Tensor], name: str) -> list[torch.Tensor]:
        """What the network gives; its values are noted."""
        self.stage = name
        with self.autocast():
            made = net(*inputs)
        outs = [each for each in _pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
        if self.options["left"]:
            outs.append(net.left)
        for n, each in enumerate(outs):
            self.note(f"{name}: output {n}", each)
        return outs

    def note(self, name: str, values: torch.Tensor) -> None:
        self.notes[name] = whole(values).detach().clone()

    def inference(self, net: Any) -> None:
        with torch.no_grad():
            inputs = self.inputs(1)
            before = net.received() if self.on_ranks else 0
            self.outputs(net, inputs, "inference")
            if self.on_ranks and self.options["outputs"] == "partitioned":
                self.words = net.planned_words().forward[dist.get_rank()], net.received() - before
            if self.options["second"]:
                self.outputs(net, self.inputs(2, second=True), "second shape")
            self.outputs(net, self.inputs(3), "inference again")
        self.state(net, "inference")

    def training(self, net: Any) -> None:
        options = self.options
        asks = options["input_gradient"] or self.case.seed % 3 == 0
        if options["compile"] and self.on_ranks:
            net.compile(backend="aot_eager")
        made = getattr(torch.optim, options["optimizer"])
        rest = {"eps": 1e-2} if options["optimizer"] == "Adam" else {"momentum": 0.9}
        trained = [each for each in net.parameters() if each.requires_grad]
        optimizer = made(trained, lr=1e-2, **rest) if trained else None
        self.one_pass(net, self.inputs(1, gradients=asks), "first", counted=options["input_gradient"] == asks)
        if options["accumulate"]:
            self.one_pass(net, self.inputs(2, options["second"], asks), "second")
        self.clipped_step(net, optimizer)
        self.state(net, "after a step")
        self.evaluation(net)
        if options["reload"]:
            self.reloaded(net)
        if options["copy"]:
            self.stage = "copy"
            net = copy.deepcopy(net)
            trained = [each for each in net.parameters() if each.requires_grad]
            optimizer = torch.optim.SGD(trained, lr=1e-2) if trained else None
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=options["to_none"])
        self.one_pass(net, self.inputs(3, options["second"], asks), "third")
        self.clipped_step(net, optimizer)
        self.state(net, "at the end")

    def clipped_step(self, net: Any, optimizer: Any) -> None:
        """A step of gradients whose norm is at most 1."""
        if optimizer is None or all(each.grad is None for each in net.parameters()):
            return
        self.stage = "step"
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        self.note(f"norm of gradients {len(self.notes)}", norm)
        optimizer.step()

    def one_pass(self, net: Any, inputs: list[torch.Tensor], name: str, counted: bool = False) -> None:
        """Forward and back; outputs and gradients are noted."""
        options = self.options
        before = net.received() if self.on_ranks else 0
        given: list[Any] = inputs
        if (
            options["scatter"]
            and self.on_ranks
            and name == "first"
            and len(inputs) == 1
            and not inputs[0].requires_grad
        ):
            given = [net.scatter(inputs[0])]
        outs = self.outputs(net, given, name)
        self.stage = f"{name}: loss"
        loss = self.loss(outs)
        if options["twice"] and loss is not None:  # two forward passes, one backward pass
            again = self.loss(self.outputs(net, self.inputs(7), f"{name}, again"))
            loss = loss if again is None else loss - 0.5 * again
            self.stage = f"{name}: loss"
        if loss is not None:
            self.note(f"{name}: loss", loss)
            self.stage = f"{name}: backward"
            loss.backward()  # type: ignore[no-untyped-call]
        received = (net.received() - before) if self.on_ranks else 0
        for key, parameter in net.named_parameters():
            self.gradient(f"{name}: gradient of {key}", parameter)
        for n, each in enumerate(inputs):
            self.gradient(f"{name}: gradient of input {n}", each)
        reads_all = (
            not options["twice"]
            and options["loss"] in ("weights", "squares")
            and options["outputs"] == "partitioned"
        )
        if (
            counted
            and self.on_ranks
            and reads_all
            and loss is not None
            and not options["compile"]
            and options["dtype"] != "autocast"
        ):
            self.stage = "words"
            planned = net.planned_words(input_gradient=options["input_gradient"])
            self.words = planned.step[dist.get_rank()], received

    def loss(self, outs: list[torch.Tensor]) -> torch.Tensor | None:
        """A number that outputs go into."""
        kind = self.options["loss"]
        terms = [each for each in outs if each.is_floating_point()]
        if kind == "some" and len(terms) > 1:
            terms = terms[::2]
        if not any(each.requires_grad for each in terms):
            return None
        total: torch.Tensor | None = None
        for n, each in enumerate(terms):
            if kind == "whole":
                each = whole(each)
            if kind == "squares":
                term = each.float().square().mean() if self.dtype == torch.float32 else each.square().mean()
            else:
                generator = torch.Generator().manual_seed(n)
                weights = torch.randn(each.shape, generator=generator, dtype=torch.float64)
                term = (each * weights.to(each.dtype)).sum()
            total = term if total is None else total + term
        return total

    def gradient(self, name: str, held: torch.Tensor) -> None:
        """Note a gradient, of which a missing one is zero."""
        if held.requires_grad:
            grad = torch.zeros_like(whole(held)) if held.grad is None else whole(held.grad)
            self.note(name, grad)

    def state(self, net: Any, name: str) -> None:
        self.stage = f"state {name}"
        state: Mapping[str, torch.Tensor] = net.full_state_dict() if self.on_ranks else net.state_dict()
        for key, values in state.items():
            self.note(f"{name}: {key}", values)

    def evaluation(self, net: Any) -> None:
        net.eval()
        with torch.no_grad():
            self.outputs(net, self.inputs(4, self.options["second"]), "evaluation")
        net.train()

    def reloaded(self, net: Any) -> None:
        """Load the state of another seed and come back."""
        self.stage = "reload"
        if not self.on_ranks:
            return
        state = net.full_state_dict()
        with torch.no_grad():
            for each in net.parameters():
                each.zero_()
        net.load_full_state_dict(state)


def laid_last(values: torch.Tensor) -> torch.Tensor:
    """The same with channels last in memory."""
    layout = CHANNELS_LAST.get(values.dim())
    return values if layout is None else values.contiguous(memory_format=layout)


def laid_anew(values: Any) -> Any:
    """Values of which the gradient is contiguous: some kernels of torch take it for that."""
    if isinstance(values, torch.Tensor) and values.requires_grad:
        values.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
    return values
