"""A smaller network that fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks.network_fuzz.draw import Drawn

USUAL = {
    **{"mode": "training", "objective": "words", "recompute": None, "outputs": "partitioned", "check": False},
    **{"dtype": "float64", "plan": None, "loss": "weights", "accumulate": False, "optimizer": "SGD"},
    **{"compile": False, "copy": False, "reload": False, "second": False, "frozen": False, "scatter": False},
    **{"input_gradient": False, "procs": 2, "to_none": True},
    **{"twice": False, "last": False, "left": False},
}


def shrunk(case: Drawn, fails: Callable[[Drawn], bool], tries: int = 80) -> Drawn:
    """The smallest case found that fails. fails: whether one does, in the same way."""
    going = True
    while going and tries > 0:
        going = False
        for smaller in _smaller(case):
            tries -= 1
            if tries < 0:
                break
            if fails(smaller):
                case, going = smaller, True
                break
    return case


def _smaller(case: Drawn) -> Iterator[Drawn]:
    """Networks with a statement less, another result, or usual options."""
    names = [line.split(" = ")[0] for line in case.forward if re.match(r"v\d+ = ", line)]
    if case.result not in names:
        yield from (replace(case, result=name) for name in reversed(names))
    elif len(names) > 1:
        cut = next(n for n, line in enumerate(case.forward) if line.startswith(f"{names[-2]} = "))
        yield replace(case, result=names[-2], forward=case.forward[: cut + 1])
    for n in reversed(range(len(case.forward))):
        rest = [line for k, line in enumerate(case.forward) if k != n]
        match = re.match(r"(\w+) = ", case.forward[n])
        if not match:
            yield replace(case, forward=tuple(rest))
            continue
        name = match.group(1)
        text = "\n".join([*rest, case.result])
        read = [
            w for w in re.findall(r"\b[a-z]\w*\b", case.forward[n]) if w in {"x", "y", *names} and w != name
        ]
        for other in dict.fromkeys(read) if re.search(rf"\b{name}\b", text) else ["x"]:
            lines = [re.sub(rf"\b{name}\b", other, line) for line in rest]
            yield replace(case, forward=tuple(lines), result=re.sub(rf"\b{name}\b", other, case.result))
    for key, value in USUAL.items():
        if case.options[key] != value:
            yield replace(case, options={**case.options, key: value})
    if "y" in case.given and not re.search(r"\by\b", "\n".join([*case.forward, case.result])):
        yield replace(case, given={"x": case.given["x"]})
