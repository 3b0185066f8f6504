"""The kinds of nodes of a network: all that the planner knows of each, in one row."""

from __future__ import annotations

from typing import Literal, NamedTuple

Exchange = Literal["norms", "group_norms", "layer_norms"]  # a field of `Between`


class Kind(NamedTuple):
    """What is known of a kind.

    keys, required: the arguments of its entry in a network file, and those that it must have.
    several: whether it takes two inputs or more; None for any number.
    planned: whether it has a loop nest; weighted: whether that has a Ker.
    passive: whether its result lies as its input, word by word of a sample.
    moves: whether it moves rows, or parts of them, between the ranks of its input.
    rows: whether ranks may compute rows of others in it, since each word follows from that of its input.
    trained: its trained words per channel, and beside, where `affine` or the entry does not say otherwise.
    affine: whether these are there where the entry does not say so.
    accesses: of the words of its output (`globalpool`: of its input), forward and backward; none are counted
    where it has no kernel of its own.
    exchange: that of a normalization: of batch, of group or instance, of layer normalizations.
    saves: what the backward pass needs: "in", its inputs; "mask", a byte per word; "own", see `Node.saves`.
    """

    keys: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    several: bool | None = False
    planned: bool = False
    weighted: bool = False
    passive: bool = False
    moves: bool = False
    rows: bool = False
    trained: tuple[int, int] = (0, 0)
    affine: bool = True
    accesses: tuple[int, int] | None = None
    exchange: Exchange | None = None
    saves: Literal["in", "mask", "own", "none"] = "none"


CONVS = ("conv1d", "conv2d", "conv3d")
SHUFFLES = ("pixelshuffle", "pixelunshuffle")
REGROUPED = (*SHUFFLES, "channelmean")  # whose rows are made of some rows, or some of one
_WINDOW = ("kernel", "stride", "padding", "dilation")
_CONV = Kind(
    ("out_channels", *_WINDOW, "padding_mode", "groups", "bias", "transposed", "output_padding"),
    ("out_channels", "kernel"),
    planned=True,
    weighted=True,
)
_NORM = Kind(
    ("affine", "parameters"),
    passive=True,
    rows=True,
    trained=(2, 0),
    accesses=(3, 5),
    exchange="norms",
    saves="in",
)
_OPERATION = Kind(passive=True, rows=True, accesses=(2, 3), saves="own")

KINDS: dict[str, Kind] = {
    **dict.fromkeys(CONVS, _CONV),
    "linear": Kind(("out_features", "bias"), ("out_features",), planned=True, weighted=True),
    "matmul": Kind(("n", "bias"), ("n",), planned=True, weighted=True),
    "pool": Kind((*_WINDOW, "ceil"), ("kernel",), planned=True),
    "upsample": Kind(("scale", "linear"), ("scale",), planned=True),
    "globalpool": Kind(("dims", "out", "max"), moves=True, accesses=(1, 1)),
    "add": Kind(several=True, accesses=(3, 0)),  # the gradient of a sum is that of its inputs
    "mul": Kind(several=True, accesses=(3, 4), saves="in"),
    "cat": Kind(several=True, accesses=(2, 2)),
    "batchnorm": _NORM,
    "layernorm": _NORM._replace(rows=False, exchange="layer_norms"),
    "groupnorm": _NORM._replace(keys=("groups", *_NORM.keys), exchange="group_norms"),
    "instancenorm": _NORM._replace(affine=False, exchange="group_norms"),
    "relu": _OPERATION,
    "prelu": _OPERATION._replace(keys=("parameters",), trained=(0, 1), saves="in"),
    "scale": _OPERATION._replace(keys=("parameters",), trained=(1, 0), saves="in"),
    "dropout": _OPERATION._replace(saves="mask"),
    "softmax": _OPERATION._replace(rows=False),
    "scan": _OPERATION._replace(rows=False, accesses=(4, 4)),  # then what rows before add up to is joined
    "flatten": Kind(passive=True),
    "reindex": Kind(("rows", "dims"), ("rows",), moves=True, accesses=(2, 2)),
    **dict.fromkeys(SHUFFLES, Kind(("factor",), ("factor",), moves=True, accesses=(2, 2))),
    "channelmean": Kind(("size",), ("size",), moves=True, accesses=(2, 2)),
    "gathered": Kind(("shape", "parameters", "divided", "multiply_adds", "joined"), ("shape",), several=None),
}
