"""What the ranks of `test_live_forms` do: change a network of some form, and a model in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from live_changes import CHANGES, Model, batch
from live_ranks import FAULTS, SHAPE, largest_error, sentence_of, whole
from shared_plan import shared_plan
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import synth

INFERENCE = "inference", "recompute"
FORMS = "replicas", "plan", "compiled", *INFERENCE


class Compiled:
    """A network that compiled code calls, as one operator."""

    def __init__(self, net: Any) -> None:
        torch._dynamo.reset()
        self.net, self.compiled = net, torch.compile(net, backend="aot_eager", fullgraph=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.net, name)

    def __call__(self, x: torch.Tensor) -> Any:
        return self.compiled(x)

    def train(self, mode: bool = True) -> Any:
        self.net.train(mode)
        return self

    def eval(self) -> Any:
        return self.train(False)


class Form:
    """A network of a form, the model that it was made of, and one beside it. trained: by one step."""

    def __init__(self, form: str, before: Any = None, trained: bool = True) -> None:
        torch.manual_seed(0)
        self.form, self.given = form, Model().double().train(form not in INFERENCE)
        if before is not None:
            before(self.given)
        self.model, options = copy.deepcopy(self.given), {"check": False, "objective": "words"}
        if form == "replicas":
            options["mesh"] = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "synth"))
        elif form == "plan":
            options["plan"] = shared_plan(self.given, SHAPE)
        elif form == "compiled":
            options["outputs"] = "whole"
        else:
            options |= {"mode": "inference", "recompute": 0.5 if form == "recompute" else 0.0}
        self.net: Any = synth.parallelize(self.given, SHAPE, **options)
        self.net = Compiled(self.net) if form == "compiled" else self.net
        assert not trained or self.error(0) < 1e-8

    def error(self, seed: int) -> float:
        """The largest error of a step and an evaluation, or of a forward pass."""
        if self.form not in INFERENCE:
            return largest_error(self.net, self.model, seed)
        outs = whole(self.net(batch(seed))), self.model(batch(seed)).detach()
        assert outs[0].shape == outs[1].shape
        return float((outs[0] - outs[1]).abs().max())


def changed(form: str, name: str) -> tuple[float, str]:
    """The largest error of steps after a change; and with which sentence the change or a step is refused."""
    change, said = CHANGES[name], ""
    made = Form(form, change.before)
    try:
        for each in (getattr(made.net, "net", made.net), made.model):
            torch.manual_seed(1)
            change.run(each)
            each.train(form not in INFERENCE and each.training)
        try:
            made.error(2)
        except RuntimeError as fault:
            if form != "compiled":
                raise
            said = str(fault)  # that step was made in part
            made.model.load_state_dict({key: whole(each) for key, each in made.net.state_dict().items()})
        return max(made.error(seed) for seed in (2, 4)), said
    except (*FAULTS, synth.UsageError) as fault:
        return 0.0, f"{type(fault).__name__}: {fault}"
    finally:
        if change.after is not None:
            change.after()


# -- changes of the model that was given -------------------------------------------------------------------

Undo = Callable[[], Any]


def values(module: str, name: str, change: Callable[[torch.Tensor], Any]) -> Callable[[Any], Undo]:
    """Other words of a parameter or buffer."""

    def run(model: Any) -> Undo:
        held = getattr(model.get_submodule(module), name)
        kept = held.detach().clone()
        with torch.no_grad():
            change(held)
        return lambda: held.data.copy_(kept)

    return run


def attribute(module: str, name: str, value: Any) -> Callable[[Any], Undo]:
    """Another attribute, module or parameter."""

    def run(model: Any) -> Undo:
        holder = model.get_submodule(module)
        kept = getattr(holder, name)
        setattr(holder, name, value)
        return lambda: setattr(holder, name, kept)

    return run


def state(change: Callable[[Any], Any]) -> Callable[[Any], Undo]:
    """What is taken back by loading the state."""

    def run(model: Any) -> Undo:
        kept = copy.deepcopy(model.state_dict())
        change(model)
        return lambda: model.double().requires_grad_(True).load_state_dict(kept)

    return run


def modes(model: Any) -> Undo:
    kept = model.training
    model.train(not kept)
    return lambda: model.train(kept)


def listed(model: Any) -> Undo:
    kept, model.weights[1] = model.weights[1], 9.0
    return lambda: model.weights.__setitem__(1, kept)


def configured(model: Any) -> Undo:
    kept, model.config.factor = model.config.factor, 7.0
    return lambda: setattr(model.config, "factor", kept)


# name -> the change, and what the sentence names
OF_GIVEN: dict[str, tuple[Callable[[Any], Undo], str]] = {
    "a weight, by little": (values("conv", "weight", lambda v: v.mul_(1.0001)), "conv.weight was changed"),
    "a buffer": (values("", "shift", lambda v: v.add_(1)), "shift was changed"),
    "statistics": (values("bn", "running_mean", lambda v: v.add_(3)), "bn.running_mean was changed"),
    "another dtype": (state(lambda m: m.float()), "was changed"),
    "a momentum": (attribute("bn", "momentum", 0.5), "bn.momentum is 0.5"),
    "a probability": (attribute("drop", "p", 0.25), "drop.p is 0.25"),
    "a stride": (attribute("head", "stride", (2, 2)), "head.stride is (2, 2)"),
    "a setting of a block": (attribute("blocks.0", "scale", 7.0), "blocks.0.scale is 7.0"),
    "a setting in an object": (configured, "config.factor is 7.0"),
    "a list": (listed, "weights[1] is 9.0"),
    "a constant in place": (values("", "offset", lambda v: v.add_(1)), "offset was changed in place"),
    "a module": (attribute("", "head", nn.Conv2d(4, 2, 1)), "head was replaced"),
    "a parameter that goes": (attribute("tail.0", "bias", None), "tail.0.bias"),
    "requires_grad": (state(lambda m: m.conv.requires_grad_(False)), "conv.weight was changed"),
    "a hook": (lambda m: m.conv.register_forward_hook(lambda *_: None).remove, "conv has a forward hook"),
    "a mode": (modes, "put into"),
}


def of_given(form: str) -> tuple[dict[str, str], float]:
    """What passes say of changes of the model that was given. Raises where they go on once it is taken back.

    And the error of evaluation at the end.
    """
    made, said = Form(form, trained=False), dict[str, str]()
    for each in (made.given, made.model, made.net):
        each.eval()
    for name, (change, _) in OF_GIVEN.items():
        undo = change(made.given)
        said[name] = sentence_of(made.net)
        undo()
        made.net(batch(1))
    outs = whole(made.net(batch(1))), made.model(batch(1)).detach()
    return said, float((outs[0] - outs[1]).abs().max())
