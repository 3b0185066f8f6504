"""Mutated plan files: none may be accepted with numbers that do not follow from its decisions.

    python tests/support/plan_mutants.py --files 10000 --seed 1

A mutant has one to three values changed, removed, added or exchanged. Half of them are then repaired, as an
editor would do it who follows the messages: each number that a message derives is written into the file.
An accepted mutant must be what its decisions make of it, and its schedules must give right values.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from synth.base.errors import InputError, SynthError
from synth.layer.layer import Layer
from synth.network.file import parse_network
from synth.network.plan.plan_json import parse_network_plan
from synth.network.plan.plan_json import to_json as network_json
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.planning.derive import plan
from synth.planning.plan_file import parse_plan
from synth.planning.plan_json import exact_json, float_json
from synth.simulation.simulate import simulated

REPAIRS = 20  # messages that the editor follows
NETWORK = """
network: n
input: [4, 4, 8, 8]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 8, kernel: 1}}
"""
VALUES = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    3,
    4,
    7,
    16,
    10**9,
    1.0,
    0.5,
    1e300,
    "",
    "in",
    "ker",
    "out",
    "3D",
    [],
)


def sources() -> list[dict[str, Any]]:
    """Plan files of layers and of a network."""
    small, other = Layer.conv2d((4, 4, 6, 6), 8, 3, padding=1), Layer.conv2d((2, 8, 5, 5), 4, 3, groups=2)
    plans = [
        plan(small, 4),
        plan(small, 4, pass_="training"),
        plan(small, 6, "6kB", pass_="training"),
        plan(small, 8, grid={"c": 2}, balance=1.0),
        plan(other, 3, pass_="backward-filter"),
    ]
    network = parse_network(NETWORK, "n.yaml")
    networks = [
        plan_network(network, NetworkRequest(4, "words", training, None, None, 0.1))
        for training in (False, True)
    ]
    return [*(each.to_json() for each in plans), *(network_json(each) for each in networks)]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def mutate(data: dict[str, Any], chance: random.Random) -> None:
    """Change one to three values."""
    for _ in range(chance.choice([1, 1, 2, 3])):
        within, key = chance.choice(list(places(data)))
        old = within[key]
        match chance.choice(["near", "near", "value", "remove", "add", "swap"]):
            case "near" if isinstance(old, int | float) and not isinstance(old, bool):
                within[key] = chance.choice([old - 1, old + 1, old * 2, old / 2, -old])
            case "remove":
                del within[key]
            case "add" if isinstance(old, list):
                old.append(chance.choice(VALUES))
            case "add" if isinstance(old, dict):
                old[chance.choice("bcdghkwxyz")] = chance.choice(VALUES)
            case "swap":
                other, place = chance.choice(list(places(data)))
                within[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(old)
            case _:
                within[key] = copy.deepcopy(chance.choice(VALUES))


def repaired(data: dict[str, Any], read: Callable[[str], Any]) -> None:
    """Write the numbers that the messages derive into the file, until they derive none."""
    for _ in range(REPAIRS):
        try:
            read(json.dumps(data))
            return
        except InputError as fault:
            path, _, rest = str(fault).removeprefix("p: ").partition(" is ")
            right = rest.rpartition("; write")[0].partition(" makes it ")[2]
            *above, key = path.split(".")
            within = data
            for step in above:
                within = within.get(step, {}) if isinstance(within, dict) else {}
            if not right or not isinstance(within, dict) or key not in within or len(right) > 78:
                return
            try:
                within[key] = ast.literal_eval(right)
            except (ValueError, SyntaxError):
                within[key] = right


def fault_of(data: dict[str, Any], original: dict[str, Any]) -> str | None:
    """What is wrong with the way a mutant is taken; "" if it is accepted rightly, None if it is refused."""
    text = json.dumps(data)
    try:
        if "network" in original["schema"]:
            found = parse_network_plan(text, "p")
            return "" if json.dumps(found) == json.dumps(original) else "accepted, though it is another"
        made = parse_plan(text, "p")
    except InputError:
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for key, derived in {**exact_json(made), **float_json(made)}.items():
        if key in data and data[key] != derived:
            return f"{key} is {data[key]}, derived is {derived}"
    for key in ("alternatives", "relaxation", "time"):
        if key in data and data[key] != original.get(key):
            return f"{key} was changed"
    try:
        simulated(made)
    except SynthError as error:
        return f"its schedule is wrong: {error}"
    return ""


def run(files: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How many mutants were refused or accepted rightly, and the faults."""
    chance, originals = random.Random(seed), sources()
    counts: Counter[str] = Counter()
    faults = []
    for number in range(files):
        original = originals[number % len(originals)]
        data = json.loads(json.dumps(original))
        mutate(data, chance)
        if chance.random() < 0.5 and isinstance(data.get("schema"), str):
            reader = parse_network_plan if "network" in original["schema"] else parse_plan
            try:
                repaired(data, lambda text, reader=reader: reader(text, "p"))  # type: ignore[misc]
            except Exception as error:
                faults.append(f"{number}: {type(error).__name__}: {error}")
        fault = fault_of(data, original)
        counts["refused" if fault is None else "accepted rightly" if not fault else "faults"] += 1
        if fault:
            faults.append(f"{number}: {fault}: {json.dumps(data)[:2000]}")
    return counts, faults


def main() -> int:
    """Report the counts and the first faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    counts, faults = run(args.files, args.seed)
    print(dict(counts), *faults[:10], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
