"""A pool of two ranks that is given cases which go wrong; prints the outcome of each as JSON."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch.distributed as dist

from benchmarks.judges import pool
from benchmarks.judges.cases import CRASH, EQUAL, REFUSED, WRONG, Case


def judged(case: Case) -> dict[str, Any]:
    """What each rank does in the case of some name."""
    second = dist.get_rank() == 1
    if case.name == "hangs" and second:
        time.sleep(600)
    if case.name == "ends" and second:
        os._exit(3)
    if case.name == "void":
        return {"void": "torch refuses it"}
    if case.name == "leaves a message":
        if second:
            dist.all_gather_object([None, None], "of the case")
        return {"verdict": EQUAL}
    if case.name == "crashes" and second:
        return {"verdict": CRASH, "why": "KeyError: 1"}
    if case.name == "refused by one":
        return {"verdict": REFUSED if second else EQUAL, "why": "no" if second else ""}
    if case.name == "refused":
        return {"verdict": REFUSED, "why": "no"}
    if case.name == "wrong on one":
        return {"verdict": WRONG if second else EQUAL, "seconds": 2.0 if second else 1.0}
    return {"verdict": EQUAL}


def main() -> None:
    pool.GRACE = 0.5
    names = ["void", "refused", "refused by one", "hangs", "wrong on one", "ends", "crashes", "equal"]
    with pool.Pool(2, 4.0, judged) as ranks:
        outcomes = {name: ranks.outcome(Case("modules", name, 0, "float64", "free")) for name in names}
    print(json.dumps({name: None if each is None else vars(each) for name, each in outcomes.items()}))


if __name__ == "__main__":
    main()
