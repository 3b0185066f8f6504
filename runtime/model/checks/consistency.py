"""All ranks of a network must be given the same: model, input, plan, options, code.

They exchange one digest before any tensor. Messages of different sizes would end a
process unnamed, and other code or another plan would compute something else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import synth.runtime
from synth.runtime.comm.group_tree import combined
from synth.runtime.grid.rank_tree import Said
from synth.runtime.grid.ranks import Ranks
from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.plain_model import require_plain

T = TypeVar("T")
Facts = dict[tuple[str, str], str]  # (kind, what is compared) -> how it is on a rank


def consistent(
    prepare: Callable[[], T],
    model: nn.Module,
    input: Any,
    settings: Mapping[tuple[str, str], Callable[[], object]],
    ranks: Ranks,
) -> T:
    """What `prepare` makes, once all ranks made it from the same. All must call this.

    prepare: reads model and plan on this rank alone, without communication.
    settings: (kind, name) -> a value that all ranks must have alike, as its text.

    A rank on which something fails takes part in the exchange with its error. Raises
    `ValueError` on every rank, with rank and difference, if the ranks differ or if some
    failed. If `prepare` raised the same on all, every rank raises its own error.
    """
    made, facts, failed = None, Facts(), None
    try:
        facts = facts_of(model, input)
        facts.update({key: str(value()) for key, value in settings.items()})
        made = prepare()
    except Exception as error:  # told to all ranks
        failed = error
    _require_same(facts, failed, ranks)
    result: Any = made
    return result  # type: ignore[no-any-return]


def _require_same(facts: Facts, failed: Exception | None, ranks: Ranks) -> None:
    digest = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()
    error = "" if failed is None else f"{type(failed).__name__}: {failed}"
    told, faults = combined(
        ranks,
        (Said(digest, ranks.me), Said(error, ranks.me)),
        lambda own, child: (own[0].with_child(child[0]), own[1].with_child(child[1])),
    )
    if faults.other < 0 and failed is not None:
        raise failed
    if faults.other < 0 and told.other < 0:
        return
    first, index, text = ranks.members[0], 0, ""
    if told.other >= 0:  # a rank that failed may lack facts; these do not count
        theirs = ranks.from_first(facts)
        kind, text = difference(facts, theirs)
        own = (ranks.me, kind, text) if text else None
        found = combined(
            ranks, own, lambda *both: min(filter(None, both), default=None)
        )
        index, kind, text = found or (0, "", "")
    if text:
        raise ValueError(
            f"rank {ranks.members[index]} has another {kind} than rank {first}: {text};"
            f" give all ranks the same {kind}"
        ) from failed
    index, error = (0, faults.text) if faults.text else faults[2:]
    raise ValueError(
        f"rank {ranks.members[index]} cannot make the network, other ranks can:"
        f" {error}; give all ranks the same model and plan"
    ) from failed


def facts_of(model: nn.Module, input: Any) -> Facts:
    """What all ranks must have alike: code, input, modules, parameters and buffers."""
    require_plain(model)
    facts = {
        ("version", "torch"): str(torch.__version__),
        ("version", "synth"): source_digest(),
        ("model", "the input"): str(Inputs.of(input)),
    }
    for name, module in model.named_modules():
        kind, settings = type(module).__name__, module.extra_repr()
        facts["model", f"module {name}"] = f"{kind}({settings})"
        mode = "training" if module.training else "evaluation"
        facts["model", f"the mode of module {name}"] = mode
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        fixed = "" if values.requires_grad else ", not trained"
        text = f"{tuple(values.shape)} of {values.dtype} on {values.device.type}{fixed}"
        facts["model", name] = text
    return facts


def difference(mine: Facts, first: Facts) -> tuple[str, str]:
    """Kind and words of the first fact that differs; empty if there is none.

    The ranks ask for it if their facts differ. Where one has none of a kind, it failed
    before it had read them.
    """
    kinds = {kind for kind, _ in mine} & {kind for kind, _ in first}
    for key in (*mine, *first):
        if key[0] in kinds and mine.get(key) != first.get(key):
            there, here = first.get(key, "missing"), mine.get(key, "missing")
            return key[0], f"{key[1]} is {here}, there it is {there}"
    return "", ""


@lru_cache(1)
def source_digest() -> str:
    """Twelve hexadecimal digits of the sources of synth that this process runs."""
    found, top = hashlib.sha256(), Path(synth.runtime.__path__[0]).parent
    for folder in (top, top / "codegen", top / "runtime"):  # links in a source tree
        for file in sorted(folder.rglob("*.py")):
            found.update(str(file.relative_to(folder)).encode())
            found.update(file.read_bytes())
    return f"{synth.__version__}, sources {found.hexdigest()[:12]}"
