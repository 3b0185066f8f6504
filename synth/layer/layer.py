"""A layer, as the user describes it: read from a YAML file or a plan file, or built in Python.

    conv2d:                       # conv1d, conv2d, conv3d, matmul or einsum
      input: [32, 256, 14, 14]    # N, C, H, W as torch has it; matmul: m, n, k
      out_channels: 256
      kernel: [3, 3]              # an int or one per dimension; likewise stride, padding, dilation
      padding: 1                  # or [[2, 0], 1]: zeros before and after; or same, as torch has it
      transposed: false           # true: conv_transpose2d, with output_padding
    name: conv4_2                 # optional

`validate` has the rules that every layer obeys, and `parse` reads layer files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypedDict, Unpack

from synth.base.errors import InputError
from synth.base.user_files import read_text
from synth.base.yaml_positions import shown
from synth.layer.axes import Axis, PerAxis
from synth.layer.einsum import EINSUM_KEYS, Contraction, checked_equation, contraction
from synth.layer.json_schema import layer_file_schema
from synth.layer.nest import Nest
from synth.layer.parse import parse
from synth.layer.validate import (
    CONV_KEYS,
    DEFAULTS,
    SPATIAL_AXES,
    TRANSPOSED_KEYS,
    TRANSPOSED_NUMBERS,
    Kind,
    LayerError,
    normalised,
    transposed_shape,
)
from synth.layer.window import Padding, Window, both_ends, out_size

__all__ = ["Layer", "LayerError", "layer_file_schema", "load_layer", "parse_layer"]

Ints = int | Sequence[int]


class Rest(TypedDict, total=False):
    """The arguments of a convolution that have defaults."""

    stride: Ints
    padding: Ints | str | Sequence[int | Sequence[int]]
    dilation: Ints
    groups: int
    dtype: str
    name: str
    transposed: bool
    output_padding: Ints


@dataclass(frozen=True)
class Layer:
    """One convolution, matrix product or binary contraction.

    The constructor checks it, so every `Layer` can be planned.

    Convolution: Out[N,K,*] from In[N,C,*] and Ker[K,C/groups,*], with the shapes of torch.
    Transposed: Out from In and Ker[C,K/groups,*]. This is the backward-data pass of the convolution `conv`,
    and has its nest. Matrix product: Out[m,n] = A[m,k]·B[k,n], with `input` (m, n, k), `out_channels` n and
    empty per-axis fields. Contraction: an equation of `torch.einsum`, folded into a convolution without
    spatial axes as `Contraction` says. Every constructor raises `LayerError`, a `UsageError`, if its
    arguments are out of range or contradict each other.
    """

    kind: Kind
    input: tuple[int, ...]  # (N, C, *spatial), or (m, n, k)
    out_channels: int
    kernel: tuple[int, ...]  # per spatial axis, like the next three
    stride: tuple[int, ...] = 1  # type: ignore[assignment]  # one int holds for every axis
    padding: tuple[Any, ...] = 0  # type: ignore[assignment]  # an entry may be (before, after)
    dilation: tuple[int, ...] = 1  # type: ignore[assignment]
    groups: int = 1
    dtype: str = "float32"
    name: str = ""  # by default the kind
    transposed: bool = False
    output_padding: tuple[int, ...] = 0  # type: ignore[assignment]  # additional output rows at the end
    equation: str = ""  # of an einsum
    index_extents: tuple[tuple[str, int], ...] = ()  # of its indices

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["name"] = self.name if self.name != "" else self.kind
        values |= normalised(self.kind, values)
        for key, value in {**values, **checked_equation(self.kind, values)}.items():
            object.__setattr__(self, key, value)

    @classmethod
    def conv1d(cls, input: Sequence[int], out_channels: int, kernel: Ints, **rest: Unpack[Rest]) -> Layer:
        """A layer with input (N, C, W). The other arguments are the keys of a layer file."""
        return cls("conv1d", input, out_channels, kernel, **rest)  # type: ignore[arg-type]

    @classmethod
    def conv2d(cls, input: Sequence[int], out_channels: int, kernel: Ints, **rest: Unpack[Rest]) -> Layer:
        """A layer with input (N, C, H, W). The other arguments are the keys of a layer file."""
        return cls("conv2d", input, out_channels, kernel, **rest)  # type: ignore[arg-type]

    @classmethod
    def conv3d(cls, input: Sequence[int], out_channels: int, kernel: Ints, **rest: Unpack[Rest]) -> Layer:
        """A layer with input (N, C, D, H, W). The other arguments are the keys of a layer file."""
        return cls("conv3d", input, out_channels, kernel, **rest)  # type: ignore[arg-type]

    @classmethod
    def matmul(cls, m: int, n: int, k: int, dtype: str = "float32", name: str = "") -> Layer:
        """The matrix product Out[m,n] = A[m,k]·B[k,n]."""
        return cls("matmul", (m, n, k), n, (), dtype=dtype, name=name)

    @classmethod
    def einsum(
        cls, equation: str, extents: Mapping[str, int], dtype: str = "float32", name: str = ""
    ) -> Layer:
        """The contraction of two operands that `torch.einsum` makes of an equation.

        extents: index -> its extent. In is the first operand, Ker the second.
        """
        return cls("einsum", kernel=(), dtype=dtype, name=name, **contraction(equation, extents).folded)

    @cached_property
    def contraction(self) -> Contraction:
        """The classes of the indices of an einsum."""
        return contraction(self.equation, self.index_extents)

    @property
    def spatial_axes(self) -> tuple[Axis, ...]:
        """The axes of the entries of `kernel`, `stride`, `padding`, `dilation`; () for a product."""
        return SPATIAL_AXES[self.kind]

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of Out as in torch: (N, K, *spatial), (m, n), or that of the equation."""
        if self.kind == "matmul":
            return self.input[:2]
        if self.kind == "einsum":
            return self.contraction.sizes(self.contraction.out)
        if self.transposed:
            return self.conv.input
        numbers = zip(self.input[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return (self.input[0], self.out_channels, *(out_size(*dimension) for dimension in numbers))

    @property
    def zeros(self) -> tuple[tuple[int, int], ...]:
        """Zeros before and after, per spatial axis."""
        return tuple(both_ends(each) for each in self.padding)

    @property
    def what(self) -> str:
        """The kind as text for people."""
        return f"transposed {self.kind}" if self.transposed else self.kind

    @cached_property
    def conv(self) -> Layer:
        """The convolution whose backward-data pass a transposed layer is; the layer itself otherwise."""
        if not self.transposed:
            return self
        sizes = transposed_shape(*(getattr(self, key) for key in TRANSPOSED_NUMBERS))
        return replace(
            self,
            input=(self.input[0], self.out_channels, *sizes),
            out_channels=self.input[1],
            transposed=False,
            output_padding=(0,) * len(sizes),
        )

    @cached_property
    def nest(self) -> Nest:
        """The loop nest. It has channels per group, and only the input rows that some output reads."""
        if self.transposed:
            return self.conv.nest
        windows = {axis: Window(1) for axis in ("d", "h", "w")}
        if self.kind == "matmul":
            m, n, k = self.input
            return Nest(PerAxis(b=m, c=k, k=n), windows["d"], windows["h"], windows["w"], self.dtype)
        numbers = zip(self.input[2:], self.kernel, self.stride, self.dilation, self.padding, strict=True)
        for axis, dimension in zip(self.spatial_axes, numbers, strict=True):
            windows[axis] = Window.reduced(*dimension)
        extents = PerAxis(
            b=self.input[0],
            g=self.groups,
            c=self.input[1] // self.groups,
            k=self.out_channels // self.groups,
            **{axis: window.out for axis, window in windows.items()},
        )
        return Nest(extents, windows["d"], windows["h"], windows["w"], self.dtype)

    def to_json(self) -> dict[str, Any]:
        """The `problem` of a plan file: loop extents (c and k per group) and the layer's own numbers."""
        sizes = self.nest.loop_extents()
        left_out = {"g"} if self.groups == 1 else set()
        left_out |= set() if self.kind == "conv3d" else {"d", "t"}
        return {
            "extents": {index: sizes[index] for index in "bgcdhwktrs" if index not in left_out},
            **{key: listed(getattr(self, key)) for key in ("stride", "padding", "dilation")},
            "groups": self.groups,
            "dtype": self.dtype,
            "kind": self.kind,
            "input": list(self.input),
            "out_channels": self.out_channels,
            "kernel": list(self.kernel),
            **({"transposed": True, "output_padding": list(self.output_padding)} if self.transposed else {}),
            **(self._equation_json() if self.kind == "einsum" else {}),
        }

    def _equation_json(self) -> dict[str, Any]:
        return {"equation": self.equation, "index_extents": dict(self.index_extents)}

    @classmethod
    def from_json(cls, problem: object, place: str, name: str = "") -> Layer:
        """The layer from the output of `to_json`. `place` names the file in messages.

        Raises `InputError` if an entry is missing, has a wrong type, or contradicts the others.
        """
        remedy = "write the plan anew with `synth plan`"
        if not isinstance(problem, dict):
            raise InputError(f"{place}: problem is not an object; {remedy}")
        for key in ("kind", *CONV_KEYS, "extents"):
            if key not in problem:
                raise InputError(f"{place}: problem lacks {key}; {remedy}")
        try:
            extra = [key for key in (*TRANSPOSED_KEYS, *EINSUM_KEYS) if key in problem]
            layer = cls(**{key: problem[key] for key in ("kind", *CONV_KEYS, *extra)}, name=name)
        except LayerError as fault:
            raise InputError(f"{place}: problem.{fault.key}: {fault.sentence}") from fault
        for key, value in layer.to_json().items():
            if repr(value) != repr(_in_order(problem.get(key), value)):  # repr: 1 is neither 1.0 nor True
                said = f"{shown(repr(problem[key]), 100)}, but the layer makes it {value}"
                raise InputError(f"{place}: problem.{key} is {said}; {remedy}")
        return layer

    def __str__(self) -> str:
        def by(numbers: Sequence[int | str]) -> str:
            return "x".join(map(str, numbers))

        if self.kind == "matmul":
            m, n, k = self.input
            return f"matmul {m}x{k} by {k}x{n}, {self.dtype}"
        if self.kind == "einsum":
            sizes = " ".join(f"{index}={extent}" for index, extent in self.index_extents)
            return f"einsum {self.equation}, {sizes}, {self.dtype}".replace(", ,", ",")
        extras = [
            f"{key.replace('_', ' ')} {by([_shown(each) for each in getattr(self, key)])}"
            for key in ("stride", "padding", "dilation", "output_padding")
            if set(getattr(self, key)) != {DEFAULTS[key]}
        ]
        extras += [f"{self.groups} groups"] if self.groups > 1 else []
        shapes = f"{by(self.input)} to {by(self.output_shape)}, kernel {by(self.kernel)}"
        return ", ".join([f"{self.what} {shapes}", *extras, self.dtype])


def load_layer(path: str | os.PathLike[str]) -> Layer:
    """The layer of a layer file (YAML); `synth schema layer` prints its JSON Schema.

    Its default name is the name of the file. Raises `InputError` with file, line and column of the fault.
    """
    return parse_layer(read_text(path), os.fspath(path))


def parse_layer(text: str, filename: str) -> Layer:
    """The layer of a file's text. `filename` appears in messages and gives the default name.

    Raises `InputError` with line and column.
    """
    parsed = parse(text, filename)
    try:
        return Layer.einsum(**parsed.values) if "equation" in parsed.values else Layer(**parsed.values)
    except LayerError as fault:
        raise parsed.fault(fault) from fault


def listed(numbers: Sequence[Padding]) -> list[int | list[int]]:
    """Numbers per axis as a file has them."""
    return [each if isinstance(each, int) else list(each) for each in numbers]


def _shown(zeros: Padding) -> str:
    return str(zeros) if isinstance(zeros, int) else f"({zeros[0]}, {zeros[1]})"


def _in_order(value: object, like: object) -> object:
    """`value` with its keys in the order of `like`, if both are objects with the same keys."""
    if isinstance(value, dict) and isinstance(like, dict) and value.keys() == like.keys():
        return {key: value[key] for key in like}
    return value
