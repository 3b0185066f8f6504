"""Limits of memory on random networks: a step fits, more memory costs no words, and refusals are exact."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from synth.base.errors import InfeasibleError
from synth.machine.hierarchy import Compute, Level, Machine
from synth.network.file import parse_network
from synth.network.graph import Network
from synth.network.memory.step_memory import step_memory
from synth.network.plan.plan import NetworkPlan
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest

WORD_BYTES = 4
LINKS = Machine("links", (Level("all", None, 1e-6, 1e-9),), Compute(1e12, 1e11), algorithms=("ring",))
REQUESTS = {
    "training": NetworkRequest(4, training=True),
    "inference": NetworkRequest(4, resident_weights=True),
    "training for time": NetworkRequest(4, "time", training=True, machine=LINKS, whole_weights=True),
}


def conv(name: str, channels: int, kernel: int, **more: object) -> str:
    """A convolution of a network file, which keeps the extents of odd kernels."""
    fields = {"out_channels": channels, "kernel": kernel, "padding": kernel // 2, **more}
    inside = ", ".join(f"{key}: {value}" for key, value in fields.items())
    return f"  - {{name: {name}, conv2d: {{{inside}}}}}"


def chain(draw: random.Random) -> list[str]:
    """Convolutions, norms and activations in a row."""
    rows = []
    for i in range(draw.randint(2, 4)):
        rows.append(conv(f"c{i}", draw.choice([4, 12, 40]), draw.choice([1, 3]), stride=draw.choice([1, 2])))
        rows += draw.choice([[], ["  - relu: {}"], ["  - batchnorm: {}", "  - relu: {}"]])
    return rows


def residual(draw: random.Random) -> list[str]:
    """Blocks whose input is added to what they compute."""
    width = draw.choice([8, 24])
    rows = [conv("s0", width, 3)]
    for i in range(draw.randint(1, 2)):
        middle = draw.choice([4, 32])
        rows += [conv(f"a{i}", middle, draw.choice([1, 3])), "  - relu: {}", conv(f"b{i}", width, 3)]
        rows.append(f"  - {{name: s{i + 1}, add: {{}}, from: [b{i}, s{i}]}}")
    return rows


def u_net(draw: random.Random) -> list[str]:
    """Values of the first half that live until the second half reads them."""
    one, two = draw.choice([8, 16]), draw.choice([16, 48])
    up = f"{{out_channels: {one}, kernel: 2, stride: 2, transposed: true}}"
    return [
        conv("down", one, 3),
        "  - {name: pooled, pool: {kernel: [2, 2], stride: 2}}",
        conv("low", two, 3),
        f"  - {{name: up, conv2d: {up}}}",
        f"  - {{name: sum, {draw.choice(['add', 'cat'])}: {{}}, from: [up, down]}}",
        conv("out", draw.choice([4, 16]), 3),
    ]


def drawn(seed: int) -> Network:
    """A small network; nothing need divide anything."""
    draw = random.Random(seed)
    rows = (chain, residual, u_net)[seed % 3](draw)
    side = 2 * draw.randint(5, 16)
    shape = [draw.choice([1, 2, 6]), draw.choice([3, 16]), side, side]
    return parse_network("\n".join(["network: drawn", f"input: {shape}", "layers:", *rows]), "drawn.yaml")


def within(network: Network, request: NetworkRequest, limit: int) -> NetworkPlan | int:
    """The plan within a limit, or the limit that its refusal names."""
    try:
        return plan_network(network, replace(request, limit_bytes=limit))
    except InfeasibleError as fault:
        return int(re.findall(r"memory=(\d+) would do", str(fault))[0])


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3, 4, 5))]
)
@pytest.mark.one_in(6)
@pytest.mark.slow
def test_a_step_fits_its_limit_and_more_memory_never_costs_more(seed: int) -> None:
    network, request = drawn(seed), [*REQUESTS.values()][(seed + seed // 3) % len(REQUESTS)]
    free, draw = plan_network(network, request), random.Random(seed)
    most = free.memory.most * WORD_BYTES
    enough = within(network, request, 1)
    assert isinstance(enough, int)
    cost: float | None = None
    for limit in [*sorted(int(draw.uniform(0.7 * enough, most)) for _ in range(2)), most]:
        made = within(network, request, limit)
        if isinstance(made, int):
            assert made == enough > limit
            assert cost is None, f"{limit} bytes are refused, and fewer had a plan"
            continue
        assert made.limit_bytes in (None, limit)
        ahead = 0 if made.limit_bytes else 1
        assert max(step_memory(made, ahead=ahead).peak) * WORD_BYTES <= limit
        assert cost is None or made.cost <= cost
        cost = made.cost
    assert (made.cost, made.placed_grids) == (free.cost, free.placed_grids)
    least = within(network, request, enough)
    assert isinstance(least, NetworkPlan)
    assert least.memory.most * WORD_BYTES == enough
    assert within(network, request, enough - 1) == enough


def test_layers_that_are_asked_to_prefetch_count_in_a_limit() -> None:
    network, asked = drawn(5), replace(REQUESTS["training"], ahead=2)
    free = plan_network(network, asked)
    of_ahead = [WORD_BYTES * step_memory(free, ahead=ahead).most for ahead in (0, 1, 2)]
    assert of_ahead[0] < of_ahead[1] < of_ahead[2] == free.held_bytes
    fits = plan_network(network, replace(asked, limit_bytes=free.held_bytes))
    assert (fits.limit_bytes, fits.placed_grids) == (None, free.placed_grids)
    less = free.held_bytes - 1
    found = within(network, asked, less)
    assert isinstance(found, NetworkPlan)
    assert WORD_BYTES * step_memory(found, ahead=2).most == found.held_bytes <= less
    plain = within(network, replace(asked, ahead=None), less)
    assert isinstance(plain, NetworkPlan)
    assert plain.held_bytes <= less
