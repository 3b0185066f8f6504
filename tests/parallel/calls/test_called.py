"""Every module of torch.nn, and functions, called in many ways: ranks compute what one process does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from called import Called
from called_tables import TABLES
from rank_pool import RankPools
from refused_calls import DIVIDED, WHOLE
from torch import nn
from wordless_calls import WORDLESS

import synth

CASES = [(table, name) for table, cases in TABLES.items() for name in cases]
# ranks of a case in every run by turns; the other number with --slow
QUICK = [(2 + 2 * (index % 2), *case) for index, case in enumerate(CASES)]
OTHER = [(6 - size, *case) for size, *case in QUICK]
SIZED = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHER)]
# containers, base classes, and what is refused: statistics between processes, words chosen by their values
OTHERS = {
    *("Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Container"),
    *("SyncBatchNorm", "RNNBase", "RNNCellBase", "AdaptiveLogSoftmaxWithLoss", "NLLLoss2d", "DataParallel"),
}


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPools]:
    with RankPools(Path(__file__).with_name("called_ranks.py"), tmp_path_factory.mktemp("ranks")) as found:
        yield found


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("size", "table", "name"), SIZED, ids=[f"{name}, {n}" for n, _, name in QUICK + OTHER]
)
@pytest.mark.one_in(30)
def test_as_in_one_process(size: int, table: str, name: str, pools: RankPools) -> None:
    for found in pools(size).call("compared", table, name):
        assert found == {}


@pytest.mark.ranks
@pytest.mark.parametrize("label", [8, -1])
def test_a_label_that_is_no_class_is_refused_on_all_ranks(label: int, pools: RankPools) -> None:
    one, other = pools(2).call("wrong_label", label)
    assert one == other
    assert one[0] == one[2]
    assert one[1].endswith("is no class; labels must be from 0 to 7, or -100, which is ignored")


@pytest.mark.ranks
@pytest.mark.parametrize("name", [*DIVIDED, *WHOLE])
@pytest.mark.one_in(3)
def test_what_torch_refuses_on_one_rank_is_refused_on_all(name: str, pools: RankPools) -> None:
    """At once, with one sentence and the class of one process, whose values passes before and behind have."""
    plan = ("data", "spatial")[len(name) % 2]
    one, other = pools(2).call("refused", name, plan, seconds=20)
    assert one == other
    before, refused, behind = one
    assert before == behind == "taken | taken"
    mine, whole = (each.partition(": ") for each in refused.split(" | "))
    assert mine[0] == whole[0]
    assert mine[0] != "taken"
    if name in DIVIDED and plan == "data":
        assert re.match(r"[\w ]+ \(refused_calls.py:\d+\) refuses the words of rank 1 \(", mine[2])


def test_every_module_of_torch_is_called() -> None:
    made = [each for cases in TABLES.values() for make in cases.values() for each in make().modules()]
    kinds = {type(each).__name__ for each in made if not isinstance(each, Called)}
    known = {
        name
        for name in dir(nn)
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    lazy = {name for name in known if name.startswith("Lazy")}
    assert sorted(known - kinds - OTHERS - lazy) == []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", WORDLESS)
def test_models_with_operands_without_words_are_planned_for_time(name: str) -> None:
    model = WORDLESS[name]()
    plan = synth.plan_model(model, model.shape, 2, objective="time", machine="lassen")
    assert 0 < plan.cost < 1
    assert min(plan.memory.values) > 0
