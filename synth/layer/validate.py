"""The rules that the numbers of a layer must satisfy, from a layer file, a plan file or a Python call."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from synth.base.errors import UsageError
from synth.base.yaml_positions import did_you_mean, shown
from synth.layer.axes import Axis
from synth.layer.nest import WORD_BYTES
from synth.layer.window import both_ends, out_size

Kind = Literal["conv1d", "conv2d", "conv3d", "matmul", "einsum"]

KINDS: tuple[Kind, ...] = get_args(Kind)
SPATIAL_AXES: dict[str, tuple[Axis, ...]] = {
    "conv1d": ("w",),
    "conv2d": ("h", "w"),
    "conv3d": ("d", "h", "w"),
    "matmul": (),
    "einsum": (),
}
# kind -> names of the entries of `input`
INPUT_ENTRIES: dict[str, tuple[str, ...]] = {
    "conv1d": ("N", "C", "W"),
    "conv2d": ("N", "C", "H", "W"),
    "conv3d": ("N", "C", "D", "H", "W"),
    "matmul": ("m", "n", "k"),
    "einsum": ("N", "C"),
}
MAX_EXTENT = 2**40
MAX_KERNEL = 2**20  # taps along one dimension; some loops visit each of them
MAX_NAME = 64

# key -> the least and the greatest value of one entry
RANGES: dict[str, tuple[int, int]] = {
    "input": (1, MAX_EXTENT),
    "out_channels": (1, MAX_EXTENT),
    "kernel": (1, MAX_KERNEL),
    "stride": (1, MAX_EXTENT),
    "padding": (0, MAX_EXTENT),
    "dilation": (1, MAX_EXTENT),
    "groups": (1, MAX_EXTENT),
    "output_padding": (0, MAX_EXTENT),
}
DEFAULTS: dict[str, int] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0}
PER_AXIS_KEYS = ("kernel", "stride", "padding", "dilation")
CONV_KEYS: tuple[str, ...] = ("input", "out_channels", *PER_AXIS_KEYS, "groups", "dtype")
TRANSPOSED_KEYS = ("transposed", "output_padding")
TRANSPOSED_NUMBERS = ("input", *PER_AXIS_KEYS, "output_padding")  # the arguments of `transposed_shape`
CONV_REQUIRED: tuple[str, ...] = ("input", "out_channels", "kernel")
MATMUL_KEYS: tuple[str, ...] = ("input", "m", "n", "k", "dtype")


class LayerError(UsageError):
    """A layer is impossible. `key` and `index` name the wrong number, and `sentence` says what is wrong."""

    def __init__(self, sentence: str, key: str, index: int | None = None, where: str = "") -> None:
        super().__init__(where + sentence)
        self.sentence = sentence
        self.key = key
        self.index = index


def normalised(kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The checked fields of a layer, with per-axis numbers as tuples. Raises `LayerError`."""
    if kind not in KINDS:
        raise LayerError(f"layer kind {shown(str(kind))} is unknown{did_you_mean(str(kind), KINDS)}", "kind")
    axes = SPATIAL_AXES[kind]
    names = INPUT_ENTRIES[kind]
    fields: dict[str, Any] = {"input": _entries(kind, "input", values["input"], names)}
    for key in PER_AXIS_KEYS:
        if key != "padding":
            fields[key] = _entries(kind, key, values[key], axes)
    fields["padding"] = _padding(kind, values["padding"], fields)
    filters = values["out_channels"]
    if kind == "matmul" and filters is None:
        filters = fields["input"][1]
    fields["out_channels"] = _integer(kind, "out_channels", "out_channels", filters)
    fields["groups"] = _integer(kind, "groups", "groups", values["groups"])
    fields["dtype"] = _dtype(values["dtype"])
    fields["name"] = check_name(values["name"])
    fields["output_padding"] = _entries(kind, "output_padding", values["output_padding"], axes)
    fields["transposed"] = values["transposed"]
    if not isinstance(fields["transposed"], bool):
        said = shown(repr(fields["transposed"]))
        raise LayerError(f"transposed is {said}; write true or false", "transposed")
    if kind == "matmul":
        _check_matmul(fields)
        return fields
    _check_channels(fields)
    conv = _transposed(kind, fields) if fields["transposed"] else fields
    if any(fields["output_padding"]) and not fields["transposed"]:
        more = fields["output_padding"]
        raise LayerError(
            f"output_padding is {list(more)}, but the layer is not transposed; write transposed: true",
            "output_padding",
        )
    for index in range(len(axes)):
        _check_window(kind, conv, index)
    return fields


def transposed_shape(input: tuple[int, ...], *numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Output positions per spatial axis of a transposed convolution.

    `numbers` are kernel, stride, padding, dilation and output_padding, each per axis.
    """
    return tuple(
        (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1 + more
        for size, kernel, stride, padding, dilation, more in zip(input[2:], *numbers, strict=True)
    )


def _transposed(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the convolution whose backward-data pass the layer is. Raises `LayerError` if none is."""
    for index, zeros in enumerate(fields["padding"]):
        if not isinstance(zeros, int):
            raise LayerError(
                f"padding {list(zeros)} is not the same at both ends of a transposed layer; write one number",
                *("padding", index, f"{kind}: "),
            )
    for index, (more, stride) in enumerate(zip(fields["output_padding"], fields["stride"], strict=True)):
        if more >= stride:
            raise LayerError(
                f"output_padding {more} is not less than the stride {stride}; use at most {stride - 1}",
                *("output_padding", index, f"{kind}: "),
            )
    sizes = transposed_shape(*(fields[key] for key in TRANSPOSED_NUMBERS))
    for index, size in enumerate(sizes):
        if not 1 <= size <= MAX_EXTENT:
            raise LayerError(
                f"padding {fields['padding'][index]} leaves {size} output positions, not 1 to {MAX_EXTENT}; "
                f"pad by less",
                *("padding", index, f"{kind}: "),
            )
    before, channels = fields["input"][0], fields["out_channels"]
    return {**fields, "input": (before, channels, *sizes), "out_channels": fields["input"][1]}


def check_name(name: object) -> str:
    """`name`, if it is fit for a report. Raises `LayerError` otherwise."""
    remedy = f"use 1 to {MAX_NAME} printable characters on one line"
    if not isinstance(name, str):
        raise LayerError(f"name is {shown(repr(name))}, not a text; {remedy}", "name")
    if not name.strip():
        raise LayerError(f"name is empty; {remedy}", "name")
    if len(name) > MAX_NAME:
        raise LayerError(f"name has {len(name)} characters; {remedy}", "name")
    if not name.isprintable():
        raise LayerError(f"name '{shown(name)}' holds a control character or line break; {remedy}", "name")
    return name


def _entries(kind: str, key: str, value: Any, names: tuple[str, ...]) -> tuple[int, ...]:
    """One integer per name, from a sequence, or from one integer for all (except for `input`)."""
    if key != "input" and index_number(value) is not None:
        return (_integer(kind, key, key, value),) * len(names)
    try:
        items = None if isinstance(value, str | bytes | Mapping) else tuple(value)
    except TypeError:  # not iterable
        items = None
    if items is None:
        integer = "" if key == "input" else "an integer or "
        said = shown(repr(value))
        raise LayerError(f"{kind} {key} is {said}; give {integer}the list {', '.join(names)}", key)
    if len(items) != len(names):
        needs = f"{len(names)}: {', '.join(names)}" if names else "none"
        entries = "1 entry" if len(items) == 1 else f"{len(items)} entries"
        raise LayerError(
            f"{kind} {key} has {entries}, needs {needs}{both_ends_of(key, len(items), len(names))}", key
        )
    labels = (f"{key} {name}" if key == "input" else key for name in names)
    return tuple(
        _integer(kind, key, label, item, index)
        for index, (label, item) in enumerate(zip(labels, items, strict=True))
    )


def both_ends_of(key: str, given: int, dims: int) -> str:
    """How two numbers of zeros are written for the one dimension that there is; nothing for other entries."""
    pair = (key, given, dims) == ("padding", 2, 1)
    return "; write [[before, after]] for the zeros at the two ends" if pair else ""


def _padding(kind: str, value: Any, fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Zeros per axis: an integer for both ends alike, else (before, after). Raises `LayerError`.

    "same" is torch's: as many zeros as keep the extent, the odd one after.
    """
    axes = SPATIAL_AXES[kind]
    if isinstance(value, str) and value == "same":
        if kind == "matmul" or set(fields["stride"]) - {1}:
            raise LayerError(f"{kind} padding is same, which needs a stride of 1; write numbers", "padding")
        spans = [d * (k - 1) for d, k in zip(fields["dilation"], fields["kernel"], strict=True)]
        return tuple(_joint(span // 2, span - span // 2) for span in spans)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == len(axes):
        ends = [each for each in value if isinstance(each, Sequence) and not isinstance(each, str)]
        if ends:
            return tuple(_pair(kind, each, index) for index, each in enumerate(value))
    return _entries(kind, "padding", value, axes)


def _pair(kind: str, value: Any, index: int) -> Any:
    """The zeros of one axis."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _integer(kind, "padding", "padding", value, index)
    if len(value) != 2:
        raise LayerError(
            f"padding {list(value)} has {len(value)} numbers for one dimension; write those before and after",
            *("padding", index, f"{kind}: "),
        )
    before, after = (_integer(kind, "padding", "padding", each, index) for each in value)
    return _joint(before, after)


def _joint(before: int, after: int) -> Any:
    return before if before == after else (before, after)


def index_number(value: Any) -> int | None:
    """`value` as an int if it is an integer of any library, else None. Booleans are not integers."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _integer(kind: str, key: str, label: str, value: Any, index: int | None = None) -> int:
    where = f"{kind}: "
    number = index_number(value)
    if number is None:
        said = shown(repr(value))
        raise LayerError(f"{label} is {said}, not an integer; give a whole number", key, index, where)
    least, most = RANGES[key]
    if number < least:
        said = str(number) if number > -(2**64) else "under -2**64"
        raise LayerError(f"{label} is {said}, less than {least}; use at least {least}", key, index, where)
    if number > most:
        said = str(number) if number < 2**64 else "over 2**64"
        raise LayerError(f"{label} is {said}, more than {most}; use at most {most}", key, index, where)
    return number


def _dtype(dtype: object) -> str:
    if not isinstance(dtype, str) or dtype not in WORD_BYTES:
        said = shown(dtype if isinstance(dtype, str) else repr(dtype))
        raise LayerError(f"dtype {said} is unknown; known are {', '.join(WORD_BYTES)}", "dtype")
    return dtype


def _check_matmul(fields: Mapping[str, Any]) -> None:
    n = fields["input"][1]
    if fields["out_channels"] != n:
        raise LayerError(
            f"matmul out_channels is {fields['out_channels']}, but input n is {n}; leave it out",
            "out_channels",
        )
    if fields["groups"] != 1:
        raise LayerError(f"matmul groups is {fields['groups']}; leave it out", "groups")


def _check_channels(fields: Mapping[str, Any]) -> None:
    channels, filters, groups = fields["input"][1], fields["out_channels"], fields["groups"]
    divisor = math.gcd(channels, filters)
    for count, what in ((channels, "input channels"), (filters, "output channels")):
        if count % groups:
            raise LayerError(
                f"groups {groups} does not divide the {count} {what}; use a divisor of {divisor}", "groups"
            )


def _check_window(kind: str, fields: Mapping[str, Any], index: int) -> None:
    """Check one spatial dimension: the kernel fits, and some window reads an input position, not padding."""
    size: int = fields["input"][2 + index]
    kernel, stride, zeros, dilation = (fields[key][index] for key in PER_AXIS_KEYS)
    padding, behind = both_ends(zeros)
    along = f"along {SPATIAL_AXES[kind][index]}" if len(SPATIAL_AXES[kind]) > 1 else ""
    where = f"{kind} {along}".rstrip() + ": "
    padded, span = size + padding + behind, dilation * (kernel - 1) + 1
    if span > padded:
        dilated = f" with dilation {dilation} spans {span} and" if dilation > 1 else ""
        raise LayerError(
            f"kernel {kernel}{dilated} does not fit the padded input {padded}; pad by at least "
            f"{-(-(span - size) // 2)} or use a kernel of at most {(padded - 1) // dilation + 1}",
            *("kernel", index, where),
        )
    out = out_size(size, kernel, stride, zeros, dilation)
    shown_zeros = padding if padding == behind else list(both_ends(zeros))
    if out > MAX_EXTENT:
        sentence = f"padding {shown_zeros} makes {out} output positions, more than {MAX_EXTENT}; pad by less"
        raise LayerError(sentence, "padding", index, where)
    for tap in range(kernel):  # nearly always returns at the first or second tap
        shift = padding - dilation * tap
        if -(-max(0, shift) // stride) <= min(out - 1, (size - 1 + shift) // stride):
            return
    raise LayerError(
        f"padding {shown_zeros} leaves every window in the padding, none of the {size} input positions is "
        f"read; use another padding, or a smaller stride {stride} or dilation {dilation}",
        *("padding", index, where),
    )
