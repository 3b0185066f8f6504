"""bound <= relaxation <= integer on random layers: some in every run, 5000 with --slow."""

from __future__ import annotations

from itertools import islice

import pytest
from effort import tried

from benchmarks.chain import problems, violations


def test_chain_on_some_random_problems() -> None:
    assert [v for problem in problems(tried(12, 30)) for v in violations(*problem)] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(20))
def test_chain_on_five_thousand_random_problems(part: int) -> None:
    some = islice(problems(5000), 250 * part, 250 * (part + 1))
    assert [v for problem in some for v in violations(*problem)] == []
