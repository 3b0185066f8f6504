"""A user's torch model on some ranks, or on all: the whole network as it is planned.

    net = synth.parallelize(model, (32, 3, 224, 224))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    criterion(net(images), labels).backward()     # images and labels are whole, the same on all ranks
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()

Parameters, gradients, the optimizer's state and the output are `PartitionedTensor`s: global tensors, of which
every rank holds a part.

Convolutions, linear layers, poolings and upsamplings run by their plans. The plans of all layers are chosen
together with the words that move between layers of different layouts. Batch normalization has the statistics
of the whole batch, or local ones; pooling fetches the rows of its neighbours. Every rank computes from the
gathered whole what cannot be computed on shards; the first rank names it on stderr.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from synth.base.doors import Door, entered_by
from synth.base.errors import UsageError
from synth.network.plan.plan import NetworkPlan
from synth.network.plan.plan_file import NetworkPlanFile
from synth.network.request import check_batch_norm
from synth.parallel.fast_plan import objective_of
from synth.parallel.layer_planner import How
from synth.parallel.machine_here import measured_here
from synth.parallel.members import ranks_of
from synth.parallel.mode import require_no_plan
from synth.parallel.one_thread import MAKING
from synth.parallel.plan_digest import digest_of_plan
from synth.parallel.recipe import NetworkRecipe, prepared_model
from synth.parallel.self_check.automatic import require_as_model, when_to_check

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from synth.runtime.model.network import Network
    from synth.runtime.tracing.inputs import Inputs


@entered_by(Door.MODEL)
@MAKING.alone()
def parallelize(
    model: nn.Module,
    input: Sequence[int] | Sequence[Any] | Mapping[str, Any] | Inputs,
    procs: int | DeviceMesh | ProcessGroup | None = None,
    plan: NetworkPlan | NetworkPlanFile | os.PathLike[str] | Mapping[str, How] | How | None = None,
    *,
    memory: int | str | None = None,
    refuse: bool = False,
    bucket_bytes: int | None = None,
    check_finite: bool = False,
    input_gradient: bool = False,
    ahead: int | None = None,
    batch_norm: Literal["global", "local"] = "global",
    mode: str = "training",
    objective: Literal["time", "words"] | None = None,
    check: bool | Literal["auto"] = "auto",
    mesh: DeviceMesh | None = None,
    outputs: Literal["partitioned", "whole"] = "partitioned",
    recompute: float | None = None,
    state: str | None = None,
    compile: bool = False,
) -> Network:
    """The model as a module on several ranks, with its parameters under their names. All ranks must call it.

    It takes the arguments of the model's `forward`: whole batches, the same on all ranks, or partitioned
    ones. It gives what the model gives, with partitioned tensors in the places of tensors.

    input: shape of the whole batch in elements. A batch of another shape, such as the last one of an epoch,
        is planned when it comes first; the weights stay where they are. For several inputs a tuple of
        shapes and example tensors by position, a dict of them by name, or `synth.Inputs` with both.
    procs: the ranks that run it, which alone call it: a process group of torch, or a mesh of one dimension,
        such as `mesh["synth"]` of a larger one. None: all ranks of the job. A number: all of them, checked.
        With a mesh of two dimensions each row runs a replica of the model, as with HSDP: each replica is
        given its own batch of the shape `input` and computes its own loss. Gradients are averaged over the
        replicas, as by DDP. `input` and the plan are those of one replica.
    plan: of the whole network, as `plan_model` or `synth.plan` makes it, or the file that `synth plan
        NET.yaml --json -o plan.json` writes. Or, for every layer, or by the name of a layer as
        `named_modules` has it ("" for the others): a training plan, parts of its grid such as {"h": 4}, or
        the name of a strategy such as "spatial". Then each layer is planned by itself. Layers that a
        strategy does not fit, or that have no name there, move the fewest words. None: planned on
        the first rank, for `objective`.
    memory: limit of the plan, or of each plan, in bytes per process. None: of a plan of the network for time,
        what this machine has per rank.
    refuse: raise `ValueError` with the name of a layer that would have to be gathered. Operations on outputs
        that every rank would compute from the whole are refused, too.
    bucket_bytes: size of the messages in which gradients of biases and whole weights are summed during the
        backward pass; 0 for one message per parameter. None: 25 MiB as DDP, or what a plan for time has
        priced: less where latency is small, so that more of them travel while others compute.
    check_finite: check for NaN and infinity in all activations and gradients, with one small collective for
        each. All ranks then raise `FloatingPointError`, which names layer, tensor and ranks.
    input_gradient: whether a step makes the gradient of the batch, too. A given plan decides it by itself.
        Where a batch requires a gradient without this, a plan with it is made at the first such call; it
        uses the weights where the first plan holds them.
    ahead: layers of which Ker is gathered while one computes (1); sums of dKer then travel while as many
        compute their gradients. It needs memory for as many more slices, which count in a limit: 0 where
        memory was limited and nothing is given.
    batch_norm: statistics of batch normalizations, over the whole batch, as in one process; or "local", over
        the samples that a rank has, as DDP's. Ranks that hold parts of the same samples share statistics.
        Running statistics are those of the first samples, as DDP keeps those of rank 0.
    mode: "training", or "inference" for the forward pass alone. Then each rank always holds the weights that
        it uses, and only activations move; docs/inference.md. What would train is refused.
    objective: of a plan made here: "time", the fewest seconds on this machine, or "words", the fewest words
        received, as `plan_model`. For time, the first call
        measures the machine for some seconds and keeps the numbers in the user's cache folder; ranks may
        hold whole slices of weights, as with DDP, where they fit `memory`. None: what the environment
        variable SYNTH_OBJECTIVE says, else "time" in training and "words" in inference.
    mesh: another name for `procs`.
    outputs: "partitioned" tensors, or "whole" ones on every rank, as after `full_tensor()` of each. The words
        of this are none of `planned_words` and `received`.
    check: whether the first rank first compares the network with the model in one process, as `synth.check`
        does, while the others wait: always (True), never (False), or where it is estimated to take at most
        as long as a step of the model in one process, or 2 s ("auto"). Rank 0 says in one line what was
        compared, or why nothing was. The environment variable SYNTH_CHECK goes before: always, never, auto.
    recompute: how many more multiply-adds than its own the busiest rank may do, as a fraction such as 0.1,
        on rows that others own, so that fewer words move between layers. 0: none. None: none for words, and
        for time as many as make a pass faster. A given plan decides it by itself; docs/inference.md.
    state: the argument of `forward` that carries a stream from call to call: a tensor, or several in a list,
        tuple or dict, or None where a stream begins. What `forward` gives last is its next value, and stays
        partitioned. Every call takes it where the one before left it, so nothing moves between them.
    compile: let `torch.compile` make one call of steps between two exchanges, such as those of a gate, or a
        frozen norm, a sum and an activation. The second pass of a mode measures each such chain in both
        forms, which takes seconds per chain; it is compiled where that takes less time of all ranks.

    Raises `CheckError` on all ranks if the network computes something else than the model. Raises
    `ValueError` on all ranks, with rank and difference, if they have another model, mode, input, plan,
    option, or version of synth or torch. The same holds if one rank fails while it reads them.
    Raises `UsageError` for a wrong argument, on a rank that is none of `procs`, for a name that no layer has,
    for a plan of another model, or while another thread is in here. Raises `InfeasibleError` if nothing fits
    the memory. Raises `ValueError` for a model that the ranks cannot run, for example one with hooks.
    docs/training.md lists these models.
    """
    import torch

    from synth.runtime.comm.process_groups import with_everyone
    from synth.runtime.model.checks.consistency import consistent
    from synth.runtime.model.checks.training_watch import watched
    from synth.runtime.model.compiled import leave_alone
    from synth.runtime.model.undisturbed import undisturbed
    from synth.runtime.tracing.inputs import Inputs
    from synth.runtime.tracing.plain_model import uncompiled

    leave_alone()  # Dynamo keeps functions of torch as it finds them, and tracing puts others there
    model = uncompiled(model)
    if mesh is not None and procs is not None:
        raise UsageError("mesh and procs both name the ranks; give one of them")
    procs = procs if mesh is None else mesh
    if outputs not in ("partitioned", "whole"):
        raise UsageError(f"outputs is {outputs!r}; give 'partitioned' or 'whole'")
    if not isinstance(compile, bool):
        raise UsageError(f"compile is {compile!r}; give True or False, and options of torch to net.compile()")
    check_batch_norm(batch_norm, mode)
    require_no_plan(recompute, plan)
    chosen_objective, when = objective_of(objective, mode), when_to_check(check)
    members = ranks_of(procs)
    options: dict[str, Any] = {"refuse": refuse, "bucket_bytes": bucket_bytes, "check_finite": check_finite}
    options |= {"batch_norm": batch_norm, "state": state or "", "compile": compile}
    given = {**options, "memory": memory, "input_gradient": input_gradient, "ahead": ahead, "mode": mode}
    given |= {"objective": chosen_objective, "check": when, "outputs": outputs}
    given["recompute"] = extra = None if recompute is None else float(recompute)
    settings = {("options", name): partial(str, value) for name, value in given.items()}
    settings["plan", "it"] = partial(digest_of_plan, plan)
    tensors = model.parameters() if isinstance(model, torch.nn.Module) else ()  # else it is refused below
    here = next((each.device for each in tensors), torch.device("cpu"))
    # a server may call it inside of torch.inference_mode(), whose tensors cannot be changed later;
    # a rank that is lost meanwhile is named, too
    with torch.inference_mode(False), undisturbed(here), watched(members.everyone) as adopt:
        members = replace(with_everyone(members), refuses_gathers=refuse)
        prepare = partial(prepared_model, ranks=members.size, plan=plan, ahead=ahead, mode=mode)
        make = partial(MAKING.made, partial(prepare, model, input))
        prepared = consistent(make, model, input, settings, members.everyone)
        recipe = NetworkRecipe(
            members,
            memory,
            input_gradient,
            ahead,
            options,
            mode == "inference",
            measured_here if chosen_objective == "time" else None,
            prepare,
            outputs == "whole",
            extra,
            partial(require_as_model, when) if when else None,
        )
        inputs = Inputs.of(input)
        asked = model, inputs, prepared.traced, members.everyone, mode == "inference", batch_norm
        require_as_model(when, *asked)
        return adopt(recipe.network(model, inputs.without_examples(), prepared))
