"""Autoencoders of images and films, as diffusers has them, on several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from synth.base.doors import Door, entered_by
from synth.base.errors import UsageError
from synth.parallel.parallelize import parallelize
from synth.runtime.grid.log import LOG

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from synth.runtime.model.network import Network


@entered_by(Door.MODEL)
def parallelize_vae(
    vae: nn.Module,
    sample: Sequence[int],
    procs: int | DeviceMesh | ProcessGroup | None = None,
    *,
    memory: int | str | None = None,
    outputs: Literal["partitioned", "whole"] = "whole",
    check: bool | Literal["auto"] = "auto",
    objective: Literal["time", "words"] | None = None,
    recompute: float | None = None,
) -> Network:
    """An autoencoder in inference on several ranks, which a pipeline uses in its place.

        pipe.vae = synth.parallelize_vae(pipe.vae, (1, 3, 1024, 1024))
        pipe.vae = synth.parallelize_vae(pipe.vae, (1, 3, 81, 480, 832))  # a film

    `encode` and `decode` are planned at their first call for a shape. They give what one process computes of
    the whole image or film: a rank gets the rows of others that its own rows need, and nothing is blended.
    Tiles and slices of diffusers are switched off, and stay so when a script asks for them. Each rank holds a
    part of every activation, and all weights. All ranks must call this, and what it gives.

    vae: with `forward`, `encode` and `decode`; it is put into evaluation. Its `config`, `dtype` and other
        attributes are those of the network.
    sample: shape of the images or films, in elements. Other shapes are planned when they come.
    procs, memory, check, objective, recompute: as for `parallelize`.
    outputs: "whole", as pipelines read them, or "partitioned" tensors.

    Raises `UsageError` for a model without `encode` and `decode`, and what `parallelize` raises.
    """
    missing = [name for name in ("encode", "decode") if not hasattr(vae, name)]
    if missing:
        raise UsageError(
            f"{type(vae).__name__} has no method {' and no '.join(missing)}; give an autoencoder, or use"
            " parallelize"
        )
    for name in ("disable_tiling", "disable_slicing"):
        if hasattr(vae, name):
            getattr(vae, name)()
    made = parallelize(
        vae.eval(),
        sample,
        procs,
        memory=memory,
        mode="inference",
        outputs=outputs,
        check=check,
        objective=objective,
        recompute=recompute,
    )
    for name in ("enable_tiling", "enable_slicing"):
        if hasattr(vae, name):
            vars(made)[name] = partial(_left_out, name, made.ranks.everyone.reports)
    return made


def _left_out(name: str, reports: bool, *args: object, **kwargs: object) -> None:
    """Say that ranks decode without tiles and slices. reports: whether this rank speaks for all."""
    if reports:
        LOG.warning(
            "synth: %s() is left out: every rank has a part of each activation, and nothing is blended", name
        )
