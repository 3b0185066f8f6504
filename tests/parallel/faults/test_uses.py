"""What wraps, records or transforms models is refused in a sentence with what to do, alike on all ranks."""

from __future__ import annotations

import re

import pytest
import uses_ranks
from rank_pool import RankPool, pool_of

pytestmark = pytest.mark.ranks
OF_MODELS = {
    "DistributedDataParallel": "sums gradients itself; parallelize model.module",
    "DataParallel": "divides the batch itself; parallelize model.module",
    "compiled part": "body is an OptimizedModule, .*; set model.body = model.body._orig_mod before",
    "script": "made by torch.jit, .*; parallelize the module that was given to torch.jit",
    "traced part": "the module body is a ScriptModule",
    "network": "parallelized already; use it as it is",
    "part of a network": "0.weight is a PartitionedTensor, .*; parallelize the whole model",
    "lazy": "0.weight has no shape before the first call of its LazyConv2d; call the model once on a batch",
    "SyncBatchNorm": "the module 1 is a SyncBatchNorm, .*; parallelize the model before convert_sync",
    "DTensor": "0.weight is a DTensor, .*; parallelize the model before",
    "fully_shard": "parallelize the model before fully_shard",
    "function": "no torch.nn.Module; give one",
    "class": "the class Conv2d, and no torch.nn.Module",
}
OF_CALLS = {
    "numpy": r"input is a ndarray of \(4, 3, 8, 8\), .*; give torch.as_tensor\(input\)",
    "list": r"input is a list of 4, .*; give one tensor, as torch.stack\(input\) makes it",
    "numbers": r"input is a list of 4, .*; give torch.tensor\(input\)",
    "None": "input is None, .*; give a tensor",
    **{
        name: f"torch.{name} cannot record a network .*full_state_dict"
        for name in ("jit.trace", "jit.script", "export", "fx")
    },
    **dict.fromkeys(("vmap", "grad", "grad of parameters"), "call the network itself, and backward"),
    "DistributedDataParallel": "do not wrap it",
    "fully_shard": "do not call fully_shard on it, but give parallelize a mesh of two dimensions",
    **dict.fromkeys(("make_fx", "linearize"), "make_fx, .*, cannot record a network .*full_state_dict"),
    "forward mode": "forward-mode AD cannot run a network .*; call the network itself, and backward",
    "pickle": "save net.full_state_dict",
    "copy": r"call copy.deepcopy\(net\)",
    "share_memory": "call full_tensor",
}


ranks = pool_of(__file__, "uses_ranks.py", 2)


@pytest.mark.parametrize("name", uses_ranks.MODELS)
@pytest.mark.one_in(6)
def test_models_that_something_has_wrapped(name: str, ranks: RankPool) -> None:
    first, second = ranks.call("refused_model", name)
    assert first == second
    assert len(first) < 250
    assert re.search(OF_MODELS[name], first), first


@pytest.mark.parametrize("name", uses_ranks.CALLS)
@pytest.mark.one_in(4)
def test_uses_of_a_network(name: str, ranks: RankPool) -> None:
    (first, far), (second, also) = ranks.call("refused_call", name)
    assert first == second
    assert len(first) < 250
    assert re.search(OF_CALLS[name], first), first
    assert max(far, also) < 1e-5  # the network stays usable


def test_a_strict_export_names_the_remedy(ranks: RankPool) -> None:
    for said, far in ranks.call("exported"):
        assert re.search(r"torch.export cannot record a network .*full_state_dict\(\) loaded", said), said
        assert "outputs='whole'" not in said
        assert far < 1e-5


def test_uses_that_work(ranks: RankPool) -> None:
    for found in ranks.call("accepted"):
        assert len(found) == 11
        assert max(found.values()) < 1e-4, found
