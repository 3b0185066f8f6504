"""Networks from a seed: source text of an `nn.Module`, inputs of two shapes, and what is done with them."""

from __future__ import annotations

import linecache
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.network_fuzz.calls import CALLS

WORDS = 6000  # of the largest tensor
LARGEST = 50.0  # word
TRIES = 40  # calls that torch may refuse


def _frozen(kind: type[Any]) -> type[nn.Module]:
    class Frozen(kind):  # type: ignore[misc]
        """A normalization that stays in evaluation."""

        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.running_mean.uniform_(-0.5, 0.5)
            self.running_var.uniform_(0.5, 1.5)

        def train(self, mode: bool = True) -> Any:
            return super().train(False)

    return Frozen


GLOBALS = {"torch": torch, "nn": nn, "F": functional, "checkpoint": checkpoint}
GLOBALS |= {f"Frozen{n}d": _frozen(getattr(nn, f"BatchNorm{n}d")) for n in (1, 2, 3)}


@dataclass(frozen=True)
class Given:
    """An input. kind: "float", "mask" or "labels". other: its shape in a second batch."""

    shape: tuple[int, ...]
    other: tuple[int, ...]
    kind: str = "float"

    def drawn(self, generator: torch.Generator, dtype: torch.dtype, second: bool) -> torch.Tensor:
        shape = self.other if second else self.shape
        if self.kind == "mask":
            return torch.rand(shape, generator=generator) > 0.4
        if self.kind == "labels":
            return torch.randint(3, shape, generator=generator)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@dataclass(frozen=True)
class Drawn:
    """A network and what is done with it. given: inputs by name. options: of ranks and of training."""

    seed: int
    init: tuple[str, ...]
    forward: tuple[str, ...]
    result: str
    given: dict[str, Given]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"network {self.seed}"

    @property
    def source(self) -> str:
        """The class, as a user writes it; modules that nobody reads are left out."""
        body = " ".join([*self.forward, self.result])
        kept = [line for line in self.init if f"{_held(line)}" in body]
        lines = ["class Net(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        lines += [f"        {line}" for line in kept]
        lines += ["", f"    def forward(self, {', '.join(self.given)}):"]
        left = ["self.left = " + re.findall(r"v\d+", self.result)[-1]] if self.options.get("left") else []
        lines += [f"        {line}" for line in (*self.forward, *left, f"return {self.result}")]
        return "\n".join(lines) + "\n"

    @property
    def precision(self) -> str:
        """The lowest precision in which something is computed; autocast leaves float64 as it is."""
        dtype: str = self.options["dtype"]
        lower = {"float64": (".float()", "float32"), "float32": ("cpu', torch.bfloat16", "autocast")}
        text, low = lower.get(dtype, ("", dtype))
        return low if text in self.source else dtype

    def model(self) -> nn.Module:
        """The network with weights of the seed, in float64."""
        place, space = f"<network {self.seed}>", dict(GLOBALS)
        linecache.cache[place] = (len(self.source), None, self.source.splitlines(True), place)
        torch.manual_seed(self.seed)
        exec(compile(self.source, place, "exec"), space)
        made: nn.Module = space["Net"]().double()  # type: ignore[operator]
        return made

    def batch(self, number: int, dtype: torch.dtype, second: bool = False) -> list[torch.Tensor]:
        """Inputs of a number, the same in every process."""
        generator = torch.Generator().manual_seed(1000 * self.seed + number)
        return [each.drawn(generator, dtype, second) for each in self.given.values()]


def _held(line: str) -> str:
    """What a line of __init__ makes, as forward names it."""
    if "register_buffer" in line:
        return "self." + line.split('"')[1]
    return line.split(" = ")[0]


class Draw:
    """Draws calls one after the other and keeps those that torch runs. values: by name."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.holder: Any = nn.Module()
        self.init: list[str] = []
        self.forward: list[str] = []
        self.values: dict[str, torch.Tensor] = {}
        self.modules: list[str] = []
        self.pending: list[str] = []
        self.made = 0

    def _init(self, line: str) -> None:
        exec(line, {**GLOBALS, "self": self.holder})
        self.init.append(line)

    def _name(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

    def module(self, text: str) -> str:
        name = f"self.{self._name('m')}"
        self._init(f"{name} = {text}")
        self.holder.double()
        return name

    def earlier_module(self) -> str | None:
        return self.rng.choice(self.modules) if self.modules else None

    def parameter(self, shape: list[int]) -> str:
        name = f"self.{self._name('p')}"
        self._init(f"{name} = nn.Parameter(0.5 * torch.randn({shape}))")
        self.holder.double()
        return name

    def buffer(self, text: str) -> str:
        name = self._name("b")
        self._init(f'self.register_buffer("{name}", {text})')
        self.holder.double()
        return f"self.{name}"

    def other(self, wanted: Callable[[torch.Tensor], bool] = lambda _: True) -> str | None:
        found = [name for name, each in self.values.items() if wanted(each)]
        return self.rng.choice(found[-6:]) if found else None

    def before(self, statement: str) -> None:
        self.pending.append(statement)

    def add(self, function: Any = None) -> bool:
        """Draw a call on one of the last values; False where torch refuses it."""
        kept = len(self.init)
        names = list(self.values)
        name = names[-1] if self.rng.random() < 0.75 else self.rng.choice(names[-4:])
        if function is None:
            functions, weights = zip(*CALLS, strict=True)
            function = self.rng.choices(functions, weights)[0]
        self.pending = []
        with torch.no_grad():
            try:
                text = function(self, name, self.values[name])
                lines = [] if text is None else [*self.pending, f"{self._name('v')} = {text}"]
                before = {key: each.clone() for key, each in self.values.items()}
                space = dict(before)
                for line in lines:
                    exec(line, {**GLOBALS, "self": self.holder}, space)
                value = space[f"v{self.made}"] if lines else None
            except Exception:
                value = None
        good = isinstance(value, torch.Tensor) and self._fits(value)
        if (
            good and value.numel() < 12 and self.rng.random() < 0.75
        ):  # most of a network has something to divide
            good = False
        if not good:
            self.init = self.init[:kept]
            return False
        self.modules += [
            _held(line) for line in self.init[kept:] if " = nn." in line and "Parameter" not in line
        ]
        self.forward += lines
        self.values = {key: each for key, each in space.items() if isinstance(each, torch.Tensor)}
        return True

    @staticmethod
    def _fits(value: torch.Tensor) -> bool:
        if not 0 < value.numel() <= WORDS or value.dim() > 6 or value.is_complex():
            return False
        return not value.is_floating_point() or (
            bool(value.isfinite().all()) and float(value.abs().max()) <= LARGEST
        )


def drawn(seed: int) -> Drawn:
    """The network of a seed."""
    draw = Draw(seed)
    rng = draw.rng
    dims = rng.choice([1, 2, 2, 2, 2, 3, 3])
    sizes = [rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13]) for _ in range(dims)]
    if dims == 3:
        sizes = [min(each, 6) for each in sizes]
    batch, channels = rng.randint(1, 5), rng.randint(1, 6)
    other_batch = rng.randint(1, 5)
    others = [max(1, each + rng.randint(-1, 2)) for each in sizes] if rng.random() < 0.4 else sizes
    given = {"x": Given((batch, channels, *sizes), (other_batch, channels, *others))}
    if rng.random() < 0.35:
        kind = rng.choice(["same", "vector", "mask", "number", "labels", "rows", "row"])
        one = {
            "same": Given((batch, channels, *sizes), (other_batch, channels, *others)),
            "vector": Given((batch, channels, *[1] * dims), (other_batch, channels, *[1] * dims)),
            "mask": Given((batch, 1, *sizes), (other_batch, 1, *others), "mask"),
            "number": Given((), ()),
            "labels": Given((batch,), (other_batch,), "labels"),
            "rows": Given((batch, sizes[-1], channels), (other_batch, others[-1], channels)),
            "row": Given((sizes[-1],), (others[-1],)),
        }[kind]
        given["y"] = one
    generator = torch.Generator().manual_seed(seed)
    draw.values = {
        name: each.drawn(generator, torch.float64, False) for name, each in reversed(given.items())
    }
    torch.manual_seed(seed)
    first = CALLS[0][0] if rng.random() < 0.9 else None
    for _ in range(TRIES):
        if draw.add(first):
            break
    calls = rng.randint(4, 14)
    for _ in range(TRIES * calls):
        if len(draw.forward) >= calls:
            break
        draw.add()
    return Drawn(seed, tuple(draw.init), tuple(draw.forward), _result(draw), given, _options(rng, given))


def _result(draw: Draw) -> str:
    """What forward gives: the last value, others, and their structure."""
    rng, names = draw.rng, list(draw.values)
    floats = [name for name in names if draw.values[name].is_floating_point() and name.startswith("v")]
    if not floats:
        return names[-1]
    last = floats[-1]
    if rng.random() < 0.12:
        return rng.choice(
            [
                f"({last} * {last}).mean()",
                f"{last}.square().sum()",
                f"F.smooth_l1_loss({last}, torch.ones_like({last}))",
            ]
        )
    more = rng.sample(names, min(len(names), rng.randint(0, 2)))
    more = [each for each in more if each != last]
    if names[-1] != last and rng.random() < 0.7:
        more.append(names[-1])
    more = list(dict.fromkeys(more))
    if not more:
        return last
    form = rng.randrange(4)
    if form == 0:
        return "{" + ", ".join(f"{each!r}: {each}" for each in [last, *more]) + "}"
    if form == 1:
        return f"[{last}, ({', '.join(more)},)]"
    if form == 2:
        return f"{', '.join([*more, last])}"
    return f"{', '.join([last, *more])}"


def _options(rng: random.Random, given: dict[str, Given]) -> dict[str, Any]:
    """Of `parallelize`, and of what is done with the network."""
    mode = "inference" if rng.random() < 0.3 else "training"
    made: dict[str, Any] = {
        "procs": rng.choice([2, 2, 3, 4, 4]),
        "mode": mode,
        "objective": rng.choice(["words", "words", "words", "time"]),
        "recompute": rng.choice([None, None, 0, 0.1, 0.5]),
        "outputs": rng.choice(["partitioned", "partitioned", "whole"]),
        "check": rng.random() < 0.1,
        "dtype": rng.choice(["float64"] * 8 + ["float32", "autocast"]),
        "plan": None
        if rng.random() < 0.55
        else rng.choice(
            ["b", "w", "h", "k", "c", "hw", "bk", "wk", "bw", "wc", "d", "dh", "spatial", "data", "filter"]
        ),
        "input_gradient": mode == "training" and rng.random() < 0.5,
        "loss": rng.choice(["weights", "weights", "squares", "whole", "some"]),
        "accumulate": rng.random() < 0.2,
        "to_none": rng.random() < 0.5,
        "optimizer": rng.choice(["SGD", "SGD", "Adam"]),
        "compile": rng.random() < 0.02,
        "copy": rng.random() < 0.15,
        "reload": rng.random() < 0.15,
        "second": rng.random() < 0.35,
        "frozen": rng.random() < 0.1,
        "scatter": rng.random() < 0.15,
        "twice": rng.random() < 0.15,
        "last": rng.random() < 0.15,
        "left": rng.random() < 0.1,
    }
    if made["plan"] is not None:
        made["recompute"] = None
    return made
