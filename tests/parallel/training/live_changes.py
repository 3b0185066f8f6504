"""The changes of `test_live`: of settings, modules, tensors and attributes; and those that are refused."""

from __future__ import annotations

import contextvars
import functools
import os
import threading
import types
from array import array
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional, utils
from torch.nn.modules import module as torch_modules
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import update_bn

Run = Callable[[Any], Any]


class Config:
    """Settings of a model, as libraries have them."""

    def __init__(self) -> None:
        self.factor, self.powers = 1.0, {"first": 1.0, "others": [1.0, 1.0]}


class Slotted:
    """Settings without a dict."""

    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0


FACTOR = 1.0
SETTINGS: dict[str, Any] = {"bias": 0.0, "signs": [1.0]}
OUTER = Config()
SHIFT = torch.tensor([0.0]).double()
TABLE, BYTES, ROW = np.ones(2), bytearray(b"\x01"), array("d", [1.0])
OF_CONTEXT: contextvars.ContextVar[float] = contextvars.ContextVar("OF_CONTEXT", default=1.0)
SLOPED = nn.LeakyReLU(1.0)
OF_THREAD, LIMITED = threading.local(), functools.partial(torch.clamp, max=9.0)
OF_THREAD.factor = 1.0


def doubled_here(x: torch.Tensor, by: Any = Slotted()) -> torch.Tensor:  # noqa: B008
    """A function with an attribute, and an object as its argument."""
    return x * doubled_here.factor * by.factor  # type: ignore[attr-defined, no-any-return]


doubled_here.factor = 1.0  # type: ignore[attr-defined]


def hidden(x: torch.Tensor) -> torch.Tensor:
    """What is computed with settings in other places."""
    x = x * torch.from_numpy(TABLE)[1] * BYTES[0] * ROW[0] * float(os.environ.get("TEST_FACTOR", "1"))
    return LIMITED(doubled_here(SLOPED(x)) * OF_CONTEXT.get() * OF_THREAD.factor)


def squashed(x: torch.Tensor) -> torch.Tensor:
    """What a function outside of classes computes with settings outside of it."""
    return FACTOR * x + SETTINGS["bias"] + SHIFT


class Block(nn.Module):
    """A part of a model with a setting of its own."""

    gain = 1.0
    powers: ClassVar[list[float]] = [1.0]
    more: ClassVar[list[float]] = []
    table: ClassVar[Any] = np.ones(2)

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.conv, self.scale, self.last = nn.Conv2d(width, width, 3, padding=1), scale, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = x.shape if self.last is None else self.last
        for power in (*self.powers, *self.more):
            x = power * x
        return x + self.gain * self.scale * self.conv(x) * float(self.table[0])


class Model(nn.Module):
    """Kinds of modules and attributes that may be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.act, self.drop = nn.LeakyReLU(0.1), nn.Dropout(0.0)
        self.norm, self.instances = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)
        self.blocks = nn.ModuleList([Block(4), Block(4, 0.5)])
        self.tail = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())
        self.head = nn.Conv2d(4, 5, 1)
        self.register_buffer("shift", torch.arange(4.0).reshape(4, 1, 1))
        self.gain, self.weights, self.config = 1.0, [1.0, 0.5], Config()
        self.offset, self.array, self.slotted = torch.tensor([0.5]).double(), [np.ones(2)], Slotted()
        self.describe = lambda: "a model"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.act(self.bn(self.conv(x)))) + self.shift
        x = self.instances(self.norm(x)) + self.offset * x
        for block, weight in zip(self.blocks, [*self.weights, *[1.0] * len(self.blocks)], strict=False):
            x = weight * block(x)
        x = hidden(x) * self.slotted.factor * torch.as_tensor(self.array[0])[0]
        x = self.gain * self.config.factor * x * self.config.powers["others"][0]
        return self.head(self.tail(squashed(x) * OUTER.factor * SETTINGS["signs"][0]))


def batch(seed: int) -> torch.Tensor:
    """A whole batch."""
    return torch.randn((4, 3, 8, 6), generator=torch.Generator().manual_seed(seed)).double()


# -- followed --------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """run: changes a network, or a model. anew: whether the network is planned anew for it. before: what is
    done to the model before. after: takes back what is global.
    """

    run: Run
    anew: bool
    before: Run | None = None
    after: Callable[[], Any] | None = None


CHANGES: dict[str, Change] = {}


def effective(name: str, anew: bool = True, **others: Any) -> Callable[[Run], Run]:
    """A change after which the network does what one process does."""

    def add(run: Run) -> Run:
        assert name not in CHANGES
        CHANGES[name] = Change(run, anew, **others)
        return run

    return add


def setting(module: str, name: str, value: Any, anew: bool = False) -> None:
    """A change of one attribute."""
    shown = f"{module}.{name}" if module else name
    effective(f"{shown} = {value!r}", anew)(lambda net: setattr(net.get_submodule(module), name, value))


setting("bn", "momentum", 0.9)
setting("bn", "momentum", None)
setting("bn", "eps", 0.5)
setting("act", "negative_slope", 0.7)
setting("drop", "p", 1.0)
setting("norm", "eps", 0.5)
setting("instances", "eps", 0.5)
setting("conv", "stride", (2, 2), anew=True)
setting("tail.0", "padding", (1, 1), anew=True)
setting("norm", "num_groups", 4, anew=True)
setting("bn", "track_running_stats", False)
setting("blocks.1", "scale", 3.0, anew=True)
setting("", "gain", -2.0, anew=True)
effective("update_bn", False)(lambda net: update_bn([batch(seed) + seed for seed in range(3)], net))


def new(kind: Any, *given: Any, **named: Any) -> nn.Module:
    """A module that the user makes, in the dtype of the model."""
    made: nn.Module = kind(*given, **named).double()
    return made


@effective("a head of other classes")
def head(net: Any) -> None:
    net.head = new(nn.Conv2d, 4, 7, 1)


@effective("bn = Identity")
def without_norm(net: Any) -> None:
    net.bn = nn.Identity()


@effective("act = PReLU")
def prelu(net: Any) -> None:
    net.act = new(nn.PReLU, 4)


@effective("a norm with other statistics")
def group_norm(net: Any) -> None:
    net.bn = new(nn.GroupNorm, 1, 4)


@effective("a block is appended")
def appended(net: Any) -> None:
    net.blocks.append(new(Block, 4))


@effective("a block is deleted, another replaced")
def deleted(net: Any) -> None:
    del net.blocks[0]
    net.blocks[0].conv = new(nn.Conv2d, 4, 4, 1)


@effective("a Sequential is extended and cut")
def sequential(net: Any) -> None:
    net.tail.append(new(nn.Conv2d, 4, 4, 3, padding=1))
    net.tail.append(new(nn.BatchNorm2d, 4))
    del net.tail[1]


@effective("modules change places")
def permuted(net: Any) -> None:
    net.tail[0], net.tail[1] = net.tail[1], net.tail[0]


@effective("a module that is not called")
def unused(net: Any) -> None:
    net.add_module("unused", new(nn.Linear, 3, 2))


@effective("a module is frozen", False)
def frozen(net: Any) -> None:
    net.conv.requires_grad_(False)
    net.bn.bias.requires_grad_(False)


@effective(
    "all modules are unfrozen", False, before=lambda model: model.requires_grad_(False).head.requires_grad_()
)
def unfrozen(net: Any) -> None:
    net.requires_grad_()


@effective("a frozen module is replaced")
def frozen_new(net: Any) -> None:
    net.tail[0] = new(nn.Conv2d, 4, 4, 3, padding=1).requires_grad_(False)


@effective("a parameter is assigned")
def assigned(net: Any) -> None:
    net.head.weight = nn.Parameter(torch.randn(5, 4, 1, 1).double())


@effective("a parameter is computed from itself", False)
def doubled(net: Any) -> None:
    net.head.weight = nn.Parameter(net.head.weight.detach() * 2)


@effective("data of a parameter is assigned", False)
def data(net: Any) -> None:
    net.head.weight.data = torch.ones(5, 4, 1, 1).double()
    net.head.bias.data = net.head.bias.data * 2


@effective("running statistics are removed")
def no_statistics(net: Any) -> None:
    net.bn.running_mean = net.bn.running_var = None


class Doubled(nn.Conv2d):
    """A convolution whose class is set later."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@effective("a module has another class")
def other_class(net: Any) -> None:
    net.head.__class__ = Doubled


@effective("convolution and norm are fused")
def fused(net: Any) -> None:
    net.eval()
    net.conv, net.bn = utils.fuse_conv_bn_eval(net.conv, net.bn), nn.Identity()


@effective("a weight of more filters")
def more_filters(net: Any) -> None:
    net.head.weight, net.head.bias = nn.Parameter(torch.randn(6, 4, 1, 1).double()), None


@effective("a bias is removed")
def without_bias(net: Any) -> None:
    net.tail[0].bias = None


@effective("weights are tied")
def tied(net: Any) -> None:
    net.blocks[1].conv.weight = net.blocks[0].conv.weight


def ties(net: Any) -> None:
    """One weight in two modules."""
    net.blocks[1].conv.weight = net.blocks[0].conv.weight


@effective("weights are untied", before=ties)
def untied(net: Any) -> None:
    net.blocks[1].conv.weight = nn.Parameter(net.blocks[0].conv.weight.detach().clone())


@effective("one module in two places")
def shared(net: Any) -> None:
    net.blocks[1] = net.blocks[0]


@effective("a buffer is replaced")
def buffer(net: Any) -> None:
    net.shift = torch.ones(4, 1, 1).double()


@effective("a buffer of another shape")
def smaller_buffer(net: Any) -> None:
    net.register_buffer("shift", torch.tensor(3.0).double())


@effective("a list is changed")
def listed(net: Any) -> None:
    net.weights[1] = 2.0


@effective("an object in an attribute is changed")
def configured(net: Any) -> None:
    net.config.factor = 3.0


@effective("a list in a dict in an object is changed")
def nested(net: Any) -> None:
    net.config.powers["others"][0] = 0.5


@effective("a constant is changed in place")
def constant(net: Any) -> None:
    net.offset += 1


@effective("a constant is replaced")
def other_constant(net: Any) -> None:
    net.offset = torch.tensor([2.0]).double()


@effective("forward of one module is replaced")
def patched(net: Any) -> None:
    net.blocks[0].forward = types.MethodType(lambda self, x: functional.silu(self.conv(x)), net.blocks[0])


@effective("forward of a class is replaced", after=lambda: setattr(Block, "forward", forward_of_block))
def patched_class(net: Any) -> None:
    Block.forward = lambda self, x: functional.silu(self.conv(x))  # type: ignore[method-assign]


forward_of_block = Block.forward


@effective("an attribute of a class", after=lambda: setattr(Block, "gain", 1.0))
def class_attribute(net: Any) -> None:
    Block.gain = 2.0


def globally(name: str, value: Any) -> Callable[[], None]:
    """Another value of a global."""
    return lambda: globals().update({name: value})


@effective("a global", after=globally("FACTOR", FACTOR))
def global_number(net: Any) -> None:
    globally("FACTOR", 3.0)()


@effective("a function outside of classes", after=globally("squashed", squashed))
def other_function(net: Any) -> None:
    globally("squashed", functional.silu)()


@effective("a global dict", after=lambda: SETTINGS.update(bias=0.0))
def global_dict(net: Any) -> None:
    SETTINGS["bias"] = 0.5


@effective("a list in a global dict", after=lambda: SETTINGS.update(signs=[1.0]))
def global_list(net: Any) -> None:
    SETTINGS["signs"][0] = -1.0


@effective("an attribute of a global object", after=lambda: setattr(OUTER, "factor", 1.0))
def global_object(net: Any) -> None:
    OUTER.factor = 2.0


@effective("a global tensor, in place", after=lambda: SHIFT.fill_(0.0))
def global_tensor(net: Any) -> None:
    SHIFT.fill_(0.5)


def hidden_change(name: str, place: Any, key: Any, value: Any, old: Any) -> None:
    """A change of an entry, or of an attribute, of what is outside of modules."""
    put = setattr if isinstance(key, str) and not hasattr(place, "__setitem__") else type(place).__setitem__
    effective(name, after=lambda: put(place, key, old))(lambda net: put(place, key, value))


hidden_change("a global array of numpy, in place", TABLE, 1, 2.0, 1.0)
hidden_change("a bytearray", BYTES, 0, 2, 1)
hidden_change("an array of Python", ROW, 0, 2.0, 1.0)
hidden_change("a variable of the environment", os.environ, "TEST_FACTOR", "2", "1")
hidden_change("a local of the thread", OF_THREAD, "factor", 2.0, 1.0)
hidden_change("an attribute of a function", doubled_here, "factor", 2.0, 1.0)
hidden_change("an object that is a default", doubled_here.__defaults__[0], "factor", 2.0, 1.0)  # type: ignore
hidden_change("an argument of a partial function", LIMITED.keywords, "max", 0.5, 9.0)
hidden_change("a global module of torch", SLOPED, "negative_slope", 0.5, 1.0)
hidden_change("an array of a class", Block.table, 0, 2.0, 1.0)


@effective("a variable of the context", after=lambda: OF_CONTEXT.set(1.0))
def context_variable(net: Any) -> None:
    OF_CONTEXT.set(2.0)


@effective("an array in a list")
def array_in_a_list(net: Any) -> None:
    net.array[0][0] = 2.0


@effective("a slot of an object")
def slot(net: Any) -> None:
    net.slotted.factor = 2.0


@effective("memory of a constant, by numpy")
def by_numpy(net: Any) -> None:
    net.offset.numpy()[0] = 2.0


@effective("memory of a constant, by data")
def by_data(net: Any) -> None:
    net.offset.data.fill_(2.0)


@effective("a list of a class", after=lambda: Block.powers.__setitem__(0, 1.0))
def class_list(net: Any) -> None:
    Block.powers[0] = 2.0


@effective("an empty list of a class", after=Block.more.clear)
def class_list_grows(net: Any) -> None:
    Block.more[:] = [2.0]


@effective("parametrizations.weight_norm")
def weight_norm(net: Any) -> None:
    parametrizations.weight_norm(net.blocks[0].conv)


@effective("parametrizations.spectral_norm")
def spectral_norm(net: Any) -> None:
    parametrizations.spectral_norm(net.head)


@effective("parametrizations.orthogonal")
def orthogonal(net: Any) -> None:
    parametrizations.orthogonal(net.head)


@effective("utils.weight_norm, by a hook")
def weight_norm_hook(net: Any) -> None:
    utils.weight_norm(net.conv)


@effective("bn.eval()", False)
def frozen_statistics(net: Any) -> None:
    net.bn.eval()


@effective("net.float().double()", False)
def rounded(net: Any) -> None:
    net.float().double()


@effective("load_state_dict", False)
def loaded(net: Any) -> None:
    state = {key: torch.ones(values.shape, dtype=values.dtype) for key, values in net.state_dict().items()}
    net.load_state_dict(state)


# -- refused ---------------------------------------------------------------------------------------------

Undo = Callable[[], Any]
refusals: dict[str, Callable[[Any], Undo]] = {}
SENTENCES: dict[str, str] = {}


def refusing(name: str, sentence: str) -> Callable[[Callable[[Any], Undo]], Callable[[Any], Undo]]:
    """A change that a pass refuses. The function takes it back."""

    def add(run: Callable[[Any], Undo]) -> Callable[[Any], Undo]:
        refusals[name], SENTENCES[name] = run, sentence
        return run

    return add


def instead(net: Any, module: str, name: str, value: Any) -> Undo:
    """Another value of an attribute, and the way back."""
    holder = net.get_submodule(module)
    kept = getattr(holder, name)
    setattr(holder, name, value)
    return lambda: setattr(holder, name, kept)


@refusing("a forward hook", "blocks.0 has hooks (forward hook), which the ranks do not call")
def forward_hook(net: Any) -> Undo:
    return net.blocks[0].register_forward_hook(lambda *_: None).remove  # type: ignore[no-any-return]


@refusing("a backward hook", "conv has hooks (backward hook), which the ranks do not call")
def backward_hook(net: Any) -> Undo:
    return net.conv.register_full_backward_hook(lambda *_: None).remove  # type: ignore[no-any-return]


@refusing("a global hook", "there is a forward hook of all modules")
def global_hook(net: Any) -> Undo:
    return torch_modules.register_module_forward_hook(lambda *_: None).remove


@refusing("a forward of a layer of torch", "conv has a forward that is not its class's")
def patched_layer(net: Any) -> Undo:
    net.conv.forward = lambda x: x
    return lambda: delattr(net.conv, "forward")


@refusing("a module without values", "head.weight was put into the network, but is on meta")
def without_values(net: Any) -> Undo:
    return instead(net, "", "head", nn.Conv2d(4, 5, 1, device="meta"))


@refusing("a module of other channels", "Model has no graph for an input of (4, 3, 8, 6)")
def other_channels(net: Any) -> Undo:
    return instead(net, "", "head", new(nn.Conv2d, 3, 5, 1))


@refusing("a module that gives several tensors", "Model has no graph for an input of (4, 3, 8, 6)")
def several(net: Any) -> Undo:
    return instead(net, "", "tail", new(nn.MaxPool2d, 2, return_indices=True))


@refusing("a module that was taken away", "'Model' object has no attribute 'head'")
def removed(net: Any) -> Undo:
    kept = net.head
    del net.head
    return lambda: setattr(net, "head", kept)
