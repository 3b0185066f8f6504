"""`synth.predict`: seconds and bytes of a network on a machine, under one strategy or all of them."""

from __future__ import annotations

import os

from synth.base.errors import UsageError
from synth.machine.file import load_machine
from synth.network.file import load_network
from synth.network.graph import Network
from synth.prediction.predict import compare
from synth.prediction.predict import predict as predict_one
from synth.prediction.prediction import Comparison, Prediction, PredictionRequest
from synth.prediction.profile import ComputeTimes, NominalRate, load_profile

PASSES = ("training", "forward")


def predict(
    network: Network | str | os.PathLike[str],
    procs: int,
    machine: str | os.PathLike[str],
    *,
    pass_: str = "training",
    strategy: str | None = None,
    profile: str | os.PathLike[str] | None = None,
    batch_norm: str = "local",
    table3: bool = False,
    batch: int | None = None,
    groups: int | None = None,
    segments: int = 8,
    flows: float | None = None,
    reuse: float = 1.0,
) -> Prediction | Comparison:
    """Seconds per step and bytes per rank of a network on a machine.

    network: a network file or a `Network`, such as `plan_model(...).network` of a torch model. procs: ranks.
    machine: a machine file, or the name of a shipped machine. pass_: "training", a training step; or
    "forward", a forward pass of inference, in which weights are resident and activations move.
    strategy: one strategy, which gives a `Prediction` with a row per layer; None compares all of them.
    profile: a CSV of measured times per layer; None takes the machine's rate. batch_norm: "local" or
    "global" statistics in training. table3: the formulas of Kahira et al., HPDC'21; the arguments after it
    are theirs (see `synth predict --help`).

    Seconds are those that nothing hides; `docs/steptime.md` has the model. Raises `UsageError` for arguments
    that do not fit together, `InputError` for a wrong file, and `InfeasibleError` for a strategy that cannot
    be used on so many ranks.
    """
    if pass_ not in PASSES:
        raise UsageError(f"pass_ is {pass_!r}; a prediction is of training or forward")
    known = network if isinstance(network, Network) else load_network(network)
    where = load_machine(machine)
    times: ComputeTimes = load_profile(profile, known) if profile else NominalRate(where)
    request = PredictionRequest(
        known,
        where,
        times,
        procs,
        batch or known.input[0],
        groups=groups,
        segments=segments,
        flows=flows,
        reuse=reuse,
        table3=table3,
        batch_norm=batch_norm,
        training=pass_ == "training",
    )
    return predict_one(request, strategy) if strategy else compare(request)
