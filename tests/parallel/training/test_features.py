"""What a training loop does around a network, on four ranks: as in one process, or refused in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from features_ranks import FEATURES
from rank_pool import RankPool, pool_of
from training_features.table import PLANS

pytestmark = pytest.mark.ranks

VARIANTS = {  # of features that stay: only run with --slow
    *("AdamW, a loop over parameters", "AdamW with amsgrad", "NAdam", "RMSprop", "Adagrad", "Adadelta"),
    *("clip_grad_norm_, p = 1", "SGD with momentum", "Adam", "zero_grad(set_to_none=False)"),
    *("cross_entropy, a sum", "cross_entropy with smoothing and weights", "huber_loss", "smooth_l1_loss"),
    *("binary_cross_entropy_with_logits", "cross_entropy with labels", "a loss of full_tensor()", "l1_loss"),
    *("targets of scatter()", "mean over a mask", "squares of parameters in the loss", "AveragedModel"),
    *("autograd.grad of one parameter", "train() and eval()", "torch.no_grad()", "input: scatter()"),
    *("net.float(), then net.double()", "autograd.backward with inputs", "GradScaler"),
    *(
        "the norm of all gradients by hand",
        "full_state_dict() in a file",
        "a change of parameters under no_grad",
    ),
    *("backward hooks on modules inside the network", "hooks on gradients of parameters"),
}
ALL = [pytest.param(name, marks=[pytest.mark.slow] * (name in VARIANTS), id=name) for name in FEATURES]
IN_TURN, JOINED = ("samples", "space", "channels"), ("mixed", "uneven")
assert {*IN_TURN, *JOINED} == set(PLANS)


ranks = pool_of(__file__, "features_ranks.py", 4)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.one_in(36)
def test_feature(ranks: RankPool, name: str, request: pytest.FixtureRequest) -> None:
    """On every rank and with every plan, a feature has the values of one process, or is refused.

    Without --slow, the plans that cut one axis take turns; those that cut several are in every run.
    """
    turn = IN_TURN[list(FEATURES).index(name) % len(IN_TURN)]
    plans = list(PLANS) if request.config.getoption("--slow") else [turn, *JOINED]
    for rank, found in enumerate(ranks.call("feature", name, plans, seconds=100)):
        assert list(found) == plans
        for plan, measured in found.items():
            where = f"{name}, rank {rank}, plan {plan}: {measured['error']} {measured['said']}"
            assert measured["error"] <= FEATURES[name].tolerance, where
            if FEATURES[name].refused:
                assert FEATURES[name].refused in measured["said"], where


def test_documentation_names_all_features() -> None:
    """The table of docs/features.md has a row for every feature, with what the tests find."""
    text = (Path(__file__).parents[3] / "docs" / "features.md").read_text(encoding="utf-8")
    section = text.split("# What works around a network\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (correct|refused) \|$", section, re.M)
    assert dict(rows) == {name: "refused" if each.refused else "correct" for name, each in FEATURES.items()}
    assert len(rows) == len(FEATURES) >= 45
    assert set(FEATURES) >= VARIANTS
