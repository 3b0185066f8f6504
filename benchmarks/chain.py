"""bound <= geometric program <= integer optimum on random layers: `python benchmarks/chain.py --count 5000`.

Three independent computations per problem, in received and accessed words, with and without a memory limit.
Prints the number of problems and every violation. Exit code 5 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator

from synth.analysis.gp_parametric import ProgramFamily
from synth.base.errors import InfeasibleError
from synth.bounds.closed_form import paper_bound
from synth.bounds.paper_cost import accessed_optimum
from synth.bounds.universal import universal_bound
from synth.layer.layer import Layer, LayerError
from synth.schedule.distribution import Distribution
from synth.search.branch_and_bound import search
from synth.search.request import Request

SOLVER = 1e-5  # relative accuracy of a geometric program
SIZES = (1, 1, 2, 3, 4, 7, 8, 12, 16, 32, 48, 64)


def random_layer(rng: random.Random) -> Layer:
    """Any kind of layer: strides, dilations, paddings and groups included."""
    if rng.random() < 0.15:
        return Layer.matmul(*(rng.choice((*SIZES, 100, 256)) for _ in range(3)))
    while True:
        dims = rng.choice((1, 2, 2, 2, 3))
        groups = rng.choice((1, 1, 1, 1, 2, 4))
        numbers = {
            "stride": [rng.choice((1, 1, 1, 2, 3)) for _ in range(dims)],
            "padding": [rng.choice((0, 0, 1, 1, 2)) for _ in range(dims)],
            "dilation": [rng.choice((1, 1, 1, 2)) for _ in range(dims)],
        }
        size = [rng.randint(3, 40 if dims < 3 else 12) for _ in range(dims)]
        shape = [rng.choice(SIZES), groups * rng.choice(SIZES), *size]
        kernel = [rng.randint(1, 5) for _ in range(dims)]
        make = (Layer.conv1d, Layer.conv2d, Layer.conv3d)[dims - 1]
        try:
            return make(shape, groups * rng.choice(SIZES), kernel, groups=groups, **numbers)  # type: ignore[arg-type]
        except LayerError:
            continue


def violations(layer: Layer, procs: int, scale: float | None) -> Iterator[str]:
    """The violations of one problem. scale: memory as a multiple of the tensors; None for any amount."""
    nest = layer.nest
    memory = None if scale is None else int(scale * nest.total_words / procs) + 8
    family = ProgramFamily(nest)
    where = f"{layer}, P = {procs}, memory {memory}: "
    slack = SOLVER * nest.total_words / procs

    def ordered(name: str, low: float | None, high: float | None) -> Iterator[str]:
        if low is not None and high is not None and low > high * (1 + SOLVER) + slack:
            yield f"{where}{name}: {low} > {high}"

    try:
        found = search(Request(nest, procs, memory))
    except InfeasibleError:
        pass
    else:
        load = Distribution(nest, found.grid).most_real_work
        relaxed = family.received(found.grid.size, memory)  # a plan may leave processes idle
        if relaxed is None:
            yield f"{where}a plan exists, but the relaxation has no solution"
        bound = universal_bound(nest, procs, memory, load).words
        yield from ordered("received, bound <= relaxation", bound, relaxed)
        yield from ordered("received, relaxation <= plan", relaxed, found.tiling.words)
    balanced = universal_bound(nest, procs, memory).words
    yield from ordered("received, balanced bound <= relaxation", balanced, family.received(procs, memory))

    if memory is not None:
        return  # Eq. 3 limits another memory, and its integer search is slow if memory is short
    relaxed = family.accessed(procs)
    try:
        integer = float(accessed_optimum(nest, procs).cost)
    except InfeasibleError:
        integer = None
    bound = universal_bound(nest, procs, accounting="accessed").words
    yield from ordered("accessed, bound <= relaxation", bound, relaxed)
    yield from ordered("accessed, relaxation <= integer", relaxed, integer)
    if all(w.dilation * (w.kernel - 1) + 1 >= w.stride for w in nest.windows.values()):
        yield from ordered("accessed, closed form <= relaxation", paper_bound(nest, procs), relaxed)


def problems(count: int, seed: int = 0) -> Iterator[tuple[Layer, int, float | None]]:
    """Random problems, the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(count):
        layer = random_layer(rng)
        yield (
            layer,
            rng.choice((2, 3, 4, 6, 7, 8, 12, 16, 17, 24, 32, 61, 64, 100, 128)),
            rng.choice((None, None, 1.5, 3.0, 8.0)),
        )


def main() -> int:
    """Runs the requested problems."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--count", type=int, default=200)
    flags.add_argument("--seed", type=int, default=0)
    asked = flags.parse_args()
    found = 0
    for number, problem in enumerate(problems(asked.count, asked.seed), 1):
        for violation in violations(*problem):
            found += 1
            print(violation, flush=True)
        if number % 500 == 0:
            print(f"{number} problems, {found} violations", file=sys.stderr, flush=True)
    print(f"{asked.count} random problems, {found} violations of bound <= relaxation <= integer")
    return 5 if found else 0


if __name__ == "__main__":
    sys.exit(main())
