"""Calls of random networks: each function writes an expression on a tensor, or gives None.

What torch refuses is dropped by who asks (`draw`), so that they need not be careful.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Names(Protocol):
    """What calls take beside their tensor: modules, parameters and other tensors of the network."""

    rng: random.Random

    def module(self, text: str) -> str: ...
    def earlier_module(self) -> str | None: ...
    def parameter(self, shape: list[int]) -> str: ...
    def buffer(self, text: str) -> str: ...
    def other(self, wanted: Callable[[torch.Tensor], bool] = ...) -> str | None: ...
    def before(self, statement: str) -> None: ...


Call = Callable[[Names, str, torch.Tensor], str | None]
CALLS: list[tuple[Call, float]] = []
MODES = {3: ("nearest", "linear", "area"), 4: ("nearest", "bilinear", "bicubic", "area", "nearest-exact")}
MODES[5] = ("nearest", "trilinear", "area")


def call(weight: float = 1.0) -> Callable[[Call], Call]:
    """Add a call to the table. weight: how often it is drawn."""

    def add(function: Call) -> Call:
        CALLS.append((function, weight))
        return function

    return add


def one_of(d: Names, *choices: Any) -> Any:
    return d.rng.choice(choices)


def floats(v: torch.Tensor) -> bool:
    return v.is_floating_point()


def each(d: Names, n: int, low: int, high: int) -> int | tuple[int, ...]:
    """A number, or one for each of n dimensions."""
    if d.rng.random() < 0.6:
        return d.rng.randint(low, high)
    return tuple(d.rng.randint(low, high) for _ in range(n))


def some_dims(d: Names, v: torch.Tensor) -> tuple[int, ...]:
    """Some dimensions, counted from either side."""
    found = d.rng.sample(range(v.dim()), d.rng.randint(1, v.dim()))
    return tuple(dim - v.dim() if d.rng.random() < 0.5 else dim for dim in sorted(found))


def dim_of(d: Names, v: torch.Tensor) -> int:
    return d.rng.randrange(-v.dim(), v.dim())


@call(9)
def conv(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not 3 <= v.dim() <= 5 or not floats(v) or v.shape[1] > 24:
        return None
    n, c = v.dim() - 2, v.shape[1]
    groups = d.rng.choice([1, 1, 1, *(g for g in range(2, c + 1) if c % g == 0)])
    filters = groups * d.rng.randint(1, max(1, 8 // groups))
    kernel = each(d, n, 1, 4)
    more = [f"stride={each(d, n, 1, 3)}"] if d.rng.random() < 0.4 else []
    more += [f"dilation={each(d, n, 1, 2)}"] if d.rng.random() < 0.25 else []
    if d.rng.random() < 0.15 and not any(m.startswith("stride") for m in more):
        more.append("padding='same'")
    elif d.rng.random() < 0.85:
        least = kernel if isinstance(kernel, int) else min(kernel)
        more.append(f"padding={each(d, n, 0, min(2, least - (d.rng.random() < 0.9)))}")
    if d.rng.random() < 0.2:
        more.append(f"padding_mode={one_of(d, 'circular', 'reflect', 'replicate')!r}")
    more += [f"groups={groups}"] if groups > 1 else []
    more += ["bias=False"] if d.rng.random() < 0.3 else []
    text = ", ".join([f"{c}, {filters}, {kernel}", *more])
    return f"{d.module(f'nn.Conv{n}d({text})')}({name})"


@call(2)
def transposed(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not 3 <= v.dim() <= 5 or not floats(v) or max(v.shape[2:]) > 12 or v.shape[1] > 24:
        return None
    n, c = v.dim() - 2, v.shape[1]
    groups = d.rng.choice([1, 1, *(g for g in range(2, c + 1) if c % g == 0)])
    filters = groups * d.rng.randint(1, max(1, 8 // groups))
    text = f"{c}, {filters}, {each(d, n, 1, 4)}, stride={each(d, n, 1, 3)}, padding={each(d, n, 0, 1)}"
    text += f", output_padding={each(d, n, 0, 1)}" if d.rng.random() < 0.5 else ""
    text += f", dilation={each(d, n, 1, 2)}" if d.rng.random() < 0.2 else ""
    text += f", groups={groups}" if groups > 1 else ""
    text += ", bias=False" if d.rng.random() < 0.3 else ""
    return f"{d.module(f'nn.ConvTranspose{n}d({text})')}({name})"


@call(1.5)
def conv_of_weight(d: Names, name: str, v: torch.Tensor) -> str | None:
    """The function, with a parameter, one of a layer before, or one that is computed."""
    if not 3 <= v.dim() <= 5 or not floats(v) or v.shape[1] > 24:
        return None
    n, c = v.dim() - 2, v.shape[1]
    module = d.earlier_module()
    kind = d.rng.randrange(4)
    if kind == 0 and module:
        return f"F.conv{n}d({name}, {module}.weight, padding={each(d, n, 0, 1)})"
    if kind == 1 and module:
        return f"F.conv_transpose{n}d({name}, {module}.weight, stride={each(d, n, 1, 2)})"
    weight = d.parameter([d.rng.randint(1, 6), c, *(d.rng.randint(1, 3) for _ in range(n))])
    if kind == 2:
        weight = one_of(d, f"{weight} - {weight}.mean((1, 2), keepdim=True)", f"F.normalize({weight}, dim=1)")
    return f"F.conv{n}d({name}, {weight}, padding={each(d, n, 0, 1)})"


@call(2)
def again(d: Names, name: str, v: torch.Tensor) -> str | None:
    """A module that was called before."""
    module = d.earlier_module() if floats(v) else None
    return f"{module}({name})" if module else None


@call(3.5)
def norm(d: Names, name: str, v: torch.Tensor) -> str | None:
    if v.dim() < 2 or not floats(v):
        return None
    n, c = v.dim() - 2, v.shape[1]
    made = []
    if v.dim() <= 5:
        kind = n or 1
        more = one_of(
            d, "", "", ", affine=False", ", momentum=None", ", track_running_stats=False", ", eps=0.1"
        )
        made += [f"nn.BatchNorm{kind}d({c}{more})", f"nn.BatchNorm{kind}d({c}{more})", f"Frozen{kind}d({c})"]
        if n:
            more = one_of(d, "", ", affine=True", ", affine=True, track_running_stats=True")
            made.append(f"nn.InstanceNorm{n}d({c}{more})")
    groups = d.rng.choice([g for g in range(1, c + 1) if c % g == 0])
    made += [f"nn.GroupNorm({groups}, {c}{one_of(d, '', ', affine=False')})"] * 2
    last = list(v.shape[-d.rng.randint(1, min(3, v.dim() - 1)) :])
    made += [f"nn.LayerNorm({last})", f"nn.RMSNorm({last})"]
    if v.dim() > 2:
        made.append(f"nn.LocalResponseNorm({d.rng.randint(1, 3)})")
    text = d.rng.choice(made)
    return f"{d.module(text)}({name})"


@call(0.7)
def norm_function(d: Names, name: str, v: torch.Tensor) -> str | None:
    if v.dim() < 3 or not floats(v):
        return None
    c = v.shape[1]
    return one_of(
        d,
        f"F.normalize({name}, dim={dim_of(d, v)})",
        f"F.layer_norm({name}, {name}.shape[{d.rng.randint(1, v.dim() - 1)}:])",
        f"F.batch_norm({name}, None, None, training=True)",
        f"F.instance_norm({name})",
        f"F.group_norm({name}, 1, {d.parameter([c])}, {d.parameter([c])})",
        f"({name} - {name}.mean(1, True)) / ({name}.var(1, keepdim=True, unbiased=False) + 0.1).sqrt()",
    )


@call(3)
def pool(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not 3 <= v.dim() <= 5 or not floats(v):
        return None
    n = v.dim() - 2
    kernel, stride = each(d, n, 1, 3), each(d, n, 1, 3)
    more = f"stride={stride}, padding={each(d, n, 0, 1)}, ceil_mode={one_of(d, True, False)}"
    made = [
        f"nn.MaxPool{n}d({kernel}, {more}, dilation={each(d, n, 1, 2)})",
        f"nn.MaxPool{n}d({kernel}, {more})",
    ]
    made += [f"nn.AvgPool{n}d({kernel}, {more}, count_include_pad={one_of(d, True, False)})"] * 2
    size = each(d, n, 1, 5)
    made += [f"nn.AdaptiveAvgPool{n}d({size})", f"nn.AdaptiveMaxPool{n}d({size})"]
    made.append(f"nn.LPPool{n}d(2, {kernel}, ceil_mode={one_of(d, True, False)})")
    text = d.rng.choice(made)
    if d.rng.random() < 0.3:
        text = text.replace("nn.", "F.").replace(f"Pool{n}d", f"_pool{n}d")
        for kind in ("AdaptiveAvg", "AdaptiveMax", "Max", "Avg", "LP"):
            text = text.replace(f"F.{kind}_", f"F.{kind.replace('Adaptive', 'adaptive_').lower()}_")
        return text.replace("(", f"({name}, ", 1)
    return f"{d.module(text)}({name})"


@call(0.7)
def unpool(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not 3 <= v.dim() <= 5 or not floats(v):
        return None
    n = v.dim() - 2
    most, places = f"{name}_most", f"{name}_places"
    d.before(f"{most}, {places} = F.max_pool{n}d({name}, 2, return_indices=True)")
    function = one_of(d, f"{most}", f"{most}.tanh()", f"{most} * {d.parameter([v.shape[1], *[1] * n])}")
    return f"F.max_unpool{n}d({function}, {places}, 2, output_size={name}.shape[2:])"


@call(2)
def interpolate(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not 3 <= v.dim() <= 5 or not floats(v) or max(v.shape[2:]) > 14:
        return None
    n, mode = v.dim() - 2, d.rng.choice(MODES[v.dim()])
    more = f", align_corners={one_of(d, True, False)}" if "linear" in mode or "cubic" in mode else ""
    other = d.other(lambda w: w.dim() == v.dim())
    if other and d.rng.random() < 0.3:
        size = f"size={other}.shape[2:]"
    elif d.rng.random() < 0.5:
        size = f"size={tuple(d.rng.randint(1, 9) for _ in range(n))}"
    else:
        size = f"scale_factor={one_of(d, 2, 2.0, 0.5, 1.5, 3)}"
        more += one_of(d, "", "", ", recompute_scale_factor=True")
    more += ", antialias=True" if mode in ("bilinear", "bicubic") and d.rng.random() < 0.2 else ""
    return f"F.interpolate({name}, {size}, mode={mode!r}{more})"


@call(0.8)
def shuffle(d: Names, name: str, v: torch.Tensor) -> str | None:
    if v.dim() != 4:
        return None
    return one_of(
        d,
        f"F.pixel_unshuffle({name}, 2)",
        f"F.pixel_shuffle({name}, 2)",
        f"F.channel_shuffle({name}, {one_of(d, 2, 3)})",
    )


@call(2)
def pad(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v) or v.dim() < 2:
        return None
    mode = one_of(d, "constant", "constant", "reflect", "replicate", "circular")
    dims = d.rng.randint(1, v.dim()) if mode == "constant" else v.dim() - 2
    low = -1 if mode == "constant" else 0
    sides = tuple(d.rng.randint(low, 2) for _ in range(2 * dims))
    return f"F.pad({name}, {sides}, mode={mode!r})"


@call(4)
def joined(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not v.dim():
        return None
    other = d.other(lambda w: w.dim() == v.dim() and w.dtype == v.dtype) or name
    dim = dim_of(d, v)
    return one_of(
        d,
        f"torch.cat([{name}, {other}], {dim})",
        f"torch.cat([{name}, {other}], {one_of(d, 1, -1) if v.dim() > 1 else 0})",
        f"torch.cat([{other}, {name}, {name}.flip({dim})], dim={dim})",
        f"torch.stack([{name}, {other}], dim={dim})",
        f"torch.cat({name}.chunk(2, {dim})[::-1], {dim})",
        f"torch.stack({name}.unbind({dim})[::-1], {dim_of(d, v)})",
    )


@call(3)
def taken(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not v.dim():
        return None
    dim = dim_of(d, v)
    size = v.shape[dim]
    other = d.other(lambda w: w.dim() == v.dim())
    start, step = d.rng.randint(0, 2), d.rng.randint(1, 3)
    places = [d.rng.randrange(size) for _ in range(d.rng.randint(1, 4))]
    parts = [":"] * v.dim()
    for k in range(v.dim()):
        if d.rng.random() < 0.4:
            parts[k] = one_of(
                d,
                f"{start}:",
                f"::{step}",
                f"{start}::{step}",
                ":-1",
                "-2:",
                f"{d.rng.randrange(v.shape[k])}",
                "None, :",
            )
    if d.rng.random() < 0.3:
        parts[d.rng.randrange(v.dim())] = f"{places}"
    if d.rng.random() < 0.2:
        parts = ["...", parts[-1]]
    choices = [f"{name}[{', '.join(parts)}]"] * 3
    choices += [
        f"{name}.narrow({dim}, {start}, {max(1, size - start)})",
        f"{name}.index_select({dim}, {d.buffer(f'torch.tensor({places})')})",
        f"torch.split({name}, {max(1, size // 2)}, {dim})[{one_of(d, 0, -1)}]",
        f"{name}.chunk({d.rng.randint(2, 3)}, dim={dim})[{one_of(d, 0, 1, -1)}]",
        f"{name}.unbind({dim})[{one_of(d, 0, -1)}]",
        f"{name}.select({dim}, {d.rng.randrange(size)})",
        f"{name}.roll({d.rng.randint(-3, 3)}, {dim})",
        f"{name}.roll(({d.rng.randint(-3, 3)}, 1), ({dim}, 0))",
        f"{name}.flip({some_dims(d, v)})",
        f"{name}.repeat_interleave(2, dim={dim})",
        f"torch.diff({name}, dim={dim})",
        f"{name}.take_along_dim({name}.argsort({dim}), {dim})",
        f"{name}.gather({dim}, {name}.argmax({dim}, keepdim=True))",
        f"{name}.gather({dim}, {name}.argsort(dim={dim}, descending=True)[..., :2])",
    ]
    if other:
        choices.append(f"{name}[..., :{other}.shape[-1]]")
        choices.append(f"{name}[:, :, -{other}.shape[-1]:]")
    return d.rng.choice(choices)


@call(5)
def binary(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v):
        return None
    other = d.other(floats)
    shape = [s if d.rng.random() < 0.5 else 1 for s in v.shape][d.rng.randint(0, v.dim()) :]
    parameter = d.parameter(shape)
    with_ = d.rng.choice(
        [other or parameter, other or parameter, parameter, f"{name}.mean({dim_of(d, v) if v.dim() else ''})"]
    )
    if other and d.rng.random() < 0.2:
        with_ = one_of(
            d,
            f"{other}.mean({some_dims_of(d)}, keepdim=True)",
            f"{other}.sum(-1)",
            f"{other}[0]",
            f"{other}[:, :1]",
        )
    return one_of(
        d,
        f"{name} + {with_}",
        f"{name} + {with_}",
        f"{name} * {with_}",
        f"{with_} - {name}",
        f"{name} * {with_}.sigmoid()",
        f"torch.where({name} > 0, {name}, {with_})",
        f"torch.where({name} > {with_}, {name}, 0.1 * {with_})",
        f"torch.maximum({name}, {with_})",
        f"{name}.lerp({with_}, 0.3)",
        f"torch.addcmul({name}, {with_}, {with_}, value=0.5)",
        f"{name} / (1 + {with_}.abs())",
        f"torch.hypot({name}, {with_} + 2)",
    )


def some_dims_of(d: Names) -> tuple[int, ...]:
    return one_of(d, (0,), (1,), (-1,), (2, 3), (-2, -1), (0, 1))


@call(3.5)
def pointwise(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v):
        return None
    return one_of(
        d,
        *(f"F.{f}({name})" for f in ("relu", "gelu", "silu", "leaky_relu", "softplus", "hardtanh", "elu")),
        *(
            f"{name}.{f}()"
            for f in ("tanh", "sin", "abs", "square", "sigmoid", "contiguous", "clone", "detach")
        ),
        f"{d.module(f'nn.PReLU({v.shape[1] if v.dim() > 1 else 1})')}({name})",
        f"{d.module(one_of(d, 'nn.ReLU(True)', 'nn.ReLU()', 'nn.Identity()', 'nn.Dropout(0.0)'))}({name})",
        f"{name}.clamp(-0.5, 1.0)",
        f"{name}.masked_fill({name} > 0.3, 0.2)",
        f"{name}.float().to({name}.dtype)",
        f"torch.nan_to_num({name})",
        f"F.glu({name}, {dim_of(d, v) if v.dim() else 0})",
    )


@call(1.5)
def gate(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not 3 <= v.dim() <= 5 or not floats(v):
        return None
    n, c = v.dim() - 2, v.shape[1]
    dims = tuple(range(2, v.dim()))
    ones = ", None" * n
    both = f"torch.cat([{name}.mean(1, True), {name}.amax(1, keepdim=True)], 1)"
    means = f"{name}.mean({dims})[:, None]"
    return one_of(
        d,
        f"{name} * {d.module(f'nn.Conv{n}d({c}, {c}, 1)')}({name}.mean({dims}, keepdim=True)).sigmoid()",
        f"{name} * {d.module(f'nn.Linear({c}, {c})')}({name}.mean({dims})).sigmoid()[..., :{ones}]".replace(
            "..., :", ":, :"
        ),
        f"{name} * {d.module(f'nn.Conv{n}d(2, 1, 3, padding=1)')}({both}).sigmoid()",
        f"{name} * F.adaptive_avg_pool{n}d({name}, 1).sigmoid()",
        f"{name} * {name}.flatten(2).softmax(-1).view_as({name})",
        f"{d.module('nn.Conv1d(1, 1, 3, padding=1)')}({means}).transpose(1, 2).sigmoid() * {name}.flatten(2)",
    )


@call(4)
def reduced(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v) or not v.dim():
        return None
    dims, keep = some_dims(d, v), one_of(d, "", ", keepdim=True", ", True")
    dim = dim_of(d, v)
    named = keep.replace(", True", ", keepdim=True")
    return one_of(
        d,
        f"{name}.mean({dims}{keep})",
        f"{name}.mean({dims}{keep})",
        f"{name}.sum({dims}{keep})",
        f"{name}.amax({dims}{named})",
        f"{name}.amin({dims}{named})",
        f"{name}.logsumexp({dims}{keep})",
        f"{name}.var({dims}{named}, unbiased={one_of(d, True, False)})",
        f"({name} + 0.1 * {name}.std()).norm(dim={dims}{named})",
        f"{name}.max({dim}{keep}).values",
        f"{name}.max({dim}{keep})[0]",
        f"{name}.clone().median({dim}{keep})[0]",
        f"{name}.mean()",
        f"{name}.std({dim}{keep})",
        f"{name}.prod({dim}{keep})",
        f"torch.linalg.vector_norm({name}, dim={dims}{named})",
        f"torch.var_mean({name}, {dim}{named})[{one_of(d, 0, 1)}]",
        f"{name}.argmax({dim}{keep})",
        f"({name} > 0).sum({dims}{keep})",
        f"({name} > 0).any({dim}{keep})",
        f"({name} > 0.1).double().mean({dims}{keep})",
        f"F.cosine_similarity({name}, {d.other(lambda w: w.dim() == v.dim()) or name}, dim={dim})",
    )


@call(2.5)
def along(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v) or not v.dim():
        return None
    dim = dim_of(d, v)
    k = d.rng.randint(1, v.shape[dim])
    return one_of(
        d,
        f"{name}.softmax({dim})",
        f"F.log_softmax({name}, dim={dim})",
        f"{name}.cumsum({dim})",
        f"{name}.cumsum({dim})",
        f"{name}.cummax({dim})[0]",
        f"{name}.flip({dim}).cumsum({dim}).flip({dim})",
        f"(1 + 0.1 * {name}.tanh()).cumprod({dim})",
        f"{name}.logcumsumexp({dim})",
        f"{name}.sort({dim})[0]",
        f"{name}.sort({dim}, descending=True).values",
        f"{name}.topk({k}, dim={dim})[0]",
        f"{name}.topk({k}, {dim}).values.sum({dim}, keepdim=True) + {name}",
        f"torch.fft.rfft({name}, dim={dim}).abs()",
        f"{name}.quantile(0.4, dim={dim}, keepdim=True)",
        f"{name}.softmax({dim}) * {name}",
        f"{name}.unfold({dim}, {min(2, v.shape[dim])}, {one_of(d, 1, 2)})",
        f"torch.trapezoid({name}, dim={dim})",
    )


@call(4)
def shaped(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not v.dim():
        return None
    order = d.rng.sample(range(v.dim()), v.dim())
    one, two = dim_of(d, v), dim_of(d, v)
    start = d.rng.randrange(v.dim())
    end = d.rng.randint(start, v.dim() - 1)
    size = v.shape[one]
    factors = [f for f in range(1, size + 1) if size % f == 0]
    factor = d.rng.choice(factors)
    shape = list(v.shape)
    d.rng.shuffle(shape)
    choices = [
        f"{name}.permute({', '.join(map(str, order))})",
        f"{name}.permute({', '.join(map(str, order))})",
        f"{name}.transpose({one}, {two})",
        f"{name}.flatten({start}, {end})",
        f"{name}.flatten({start})",
        f"{name}.reshape({name}.shape[0], -1)",
        f"{name}.reshape(-1, {name}.shape[-1])",
        f"{name}.reshape({shape})",
        f"{name}.unflatten({one}, ({factor}, -1))",
        f"{name}.unflatten({one}, (-1, {factor}))",
        f"{name}.unsqueeze({one})",
        f"{name}.squeeze()",
        f"{name}.movedim({one}, {two})",
        f"{name}.expand(2, {', '.join(['-1'] * v.dim())})",
        f"{name}.repeat({', '.join(str(d.rng.randint(1, 2)) for _ in range(v.dim()))})",
        f"{name}.tile({d.rng.randint(1, 2)}, 1)",
        f"{name}.unfold({one}, {min(2, size)}, 1)",
    ]
    if v.dim() == 4:
        choices += [
            f"F.unfold({name}, {d.rng.randint(1, 3)}, padding=1, stride={d.rng.randint(1, 2)})",
            f"F.fold(F.unfold({name}, 3, padding=1), {name}.shape[2:], 3, padding=1)",
            f"{name}.flatten(2).transpose(1, 2)",
            f"{name}.permute(0, 2, 3, 1)",
        ]
    if v.dim() == 3:
        choices += [f"{name}.transpose(1, 2)", f"{name}[:, :, None]", f"{name}.unsqueeze(-1)"]
    return d.rng.choice(choices)


@call(2.5)
def product(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v) or v.dim() < 2:
        return None
    other = d.other(lambda w: w.dim() >= 2 and floats(w)) or name
    k = d.rng.randint(1, 6)
    parameter = d.parameter([v.shape[-1], k])
    letters = "abcdefg"[: v.dim()]
    drop = d.rng.choice(letters)
    matrix = d.parameter([k, v.shape[letters.index(drop)]])
    kept = letters.replace(drop, "")
    swapped = "".join(d.rng.sample(letters, len(letters)))
    return one_of(
        d,
        f"{d.module(f'nn.Linear({v.shape[-1]}, {k}, bias={one_of(d, True, False)})')}({name})",
        f"{d.module(f'nn.Linear({v.shape[-1]}, {k})')}({name})",
        f"{d.module(f'nn.Linear({v.shape[1]}, {k})')}({name}.transpose(1, -1)).transpose(1, -1)",
        f"{name} @ {parameter}",
        f"{name} @ {name}.transpose(-1, -2)",
        f"{name}.transpose(-1, -2) @ {name}",
        f"torch.matmul({name}, {other})",
        f"torch.matmul({name}, {other}.transpose(-1, -2))",
        f"torch.einsum('{letters},{letters}->{kept}', {name}, {name})",
        f"torch.einsum('{letters},{letters}->{swapped}', {name}, {name}.tanh())",
        f"torch.einsum('{letters},z{drop}->{letters.replace(drop, 'z')}', {name}, {matrix})",
        f"torch.bmm({name}, {name}.transpose(1, 2))",
        f"torch.tensordot({name}, {parameter}, dims=1)",
        f"torch.cdist({name}, {name} + 1)",
    )


@call(1.5)
def attention(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v) or not 3 <= v.dim() <= 5 or v.numel() > 3000:
        return None
    flat = f"{name}.flatten(2)" + one_of(d, "", ".transpose(1, 2)")
    rows = name if v.dim() == 3 and d.rng.random() < 0.5 else flat
    q = f"{name}_rows"
    d.before(f"{q} = {rows}")
    mask = one_of(
        d,
        "",
        "",
        ", is_causal=True",
        f", attn_mask=torch.ones({q}.shape[1], {q}.shape[1], dtype=torch.bool).tril()",
        f", attn_mask=({q}[:, :, 0] > -1)[:, None]",
        f", attn_mask={q}.mean(-1)[:, None, :]",
    )
    last = v.shape[1] if rows.endswith("(1, 2)") else (v.shape[-1] if rows == name else v[0, 0].numel())
    heads = d.rng.choice([h for h in range(1, last + 1) if last % h == 0 and h < 5])
    first, both, k = one_of(d, "True", "True", "False"), one_of(d, True, False), d.rng.randint(1, 5)
    parts = f"{q}.unflatten(-1, ({heads}, -1)).transpose(1, 2)"
    return one_of(
        d,
        f"F.scaled_dot_product_attention({q}, {q}, {q}{mask})",
        f"F.scaled_dot_product_attention({q}, {q}[:, 1:], {q}[:, 1:].tanh())" if v.shape[1] > 1 else q,
        f"({q} @ {q}.transpose(1, 2) / 3).softmax(-1) @ {q}",
        f"{d.module(f'nn.MultiheadAttention({last}, {heads}, batch_first={first})')}({q}, {q}, {q})[0]",
        f"{d.module(f'nn.TransformerEncoderLayer({last}, {heads}, 8, 0.0, batch_first={first})')}({q})",
        f"{d.module(f'nn.GRU({last}, {k}, batch_first={first}, bidirectional={both})')}({q})[0]",
        f"F.scaled_dot_product_attention({parts}, {parts}, {parts}.tanh()).transpose(1, 2).flatten(2)",
    )


@call(1.2)
def labels(d: Names, name: str, v: torch.Tensor) -> str | None:
    """What integers and truth values are for."""
    if floats(v):
        table = d.rng.randint(3, 7)
        dim = dim_of(d, v) if v.dim() else 0
        n = v.shape[dim] if v.dim() else 1
        return one_of(
            d,
            f"{d.module(f'nn.Embedding({n}, {d.rng.randint(1, 5)})')}({name}.argmax({dim}))",
            f"F.one_hot({name}.argmax({dim}), {n}).to({name}.dtype)",
            f"{d.module(f'nn.Embedding({table}, 3)')}(({name}.abs() * 3).long() % {table})",
            f"({name} > {name}.mean()).to({name}.dtype) * {name}",
            f"torch.bucketize({name}.detach(), {d.buffer('torch.linspace(-1, 1, 5)')})",
        )
    return one_of(
        d,
        f"{name}.to({d.other(floats) or name}.dtype)",
        f"{d.other(floats) or name} * {name}",
        f"~({name} > 0)",
        f"{name} + 1",
        f"torch.where({name} > 0, {d.other(floats) or 1.0}, 0.5)",
        f"({d.other(floats) or name}).masked_fill({name} == 0, 0.25)",
    )


@call(2)
def in_place(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v) or not v.dim():
        return None
    new = f"{name}_new"
    d.before(f"{new} = {name}{one_of(d, '.clone()', ' * 1.5', '.tanh()', ' + 0')}")
    dim = d.rng.randrange(v.dim())
    before = ":, " * dim
    size = v.shape[dim]
    other = d.other(lambda w: floats(w) and w.dim() <= v.dim()) or name
    d.before(
        one_of(
            d,
            f"{new}.add_({other})",
            f"{new}.mul_(0.5).sub_({d.parameter([v.shape[-1]])})",
            f"{new}[{before}{d.rng.randrange(size)}:] = 0.5",
            f"{new}[{before}1:] = {name}[{before}:-1]",
            f"{new}[{before}::2] += {name}[{before}::2]",
            f"{new}[{before}{d.rng.randrange(size)}] *= 2",
            f"{new}[{before}-1] = {name}[{before}0]",
            f"{new}.masked_fill_({name} > 0, 0.1)",
            f"{new}[{name} > 0.2] = 0.0",
            f"{new}.relu_()",
            f"F.relu({new}, inplace=True)",
            f"{new}.clamp_(min=-0.3)",
            f"{new}.index_fill_({dim}, {d.buffer('torch.tensor([0])')}, 1.0)",
            f"{new}.index_add_({dim}, {d.buffer('torch.tensor([0, 0])')}, {name}.narrow({dim}, 0, 2))",
            f"{new}.copy_({other})",
            f"{new} += {other}",
        )
    )
    return one_of(d, new, new, f"{new} + {name}")


@call(0.8)
def buffer_update(d: Names, name: str, v: torch.Tensor) -> str | None:
    if not floats(v):
        return None
    if v.dim() < 2 or d.rng.random() < 0.4:
        held = d.buffer("torch.zeros(())")
        update = one_of(d, f"{name}.detach().mean()", f"{name}.detach().abs().max()", "1")
    else:
        held = d.buffer(f"torch.ones({v.shape[1]})")
        dims = tuple(n for n in range(v.dim()) if n != 1)
        update = f"{name}.detach().mean({dims})"
    d.before(
        one_of(
            d,
            f"{held}.add_({update})",
            f"{held}.mul_(0.9).add_({update}, alpha=0.1)",
            f"{held}.copy_({update})",
            f"if self.training: {held}.lerp_({update}, 0.2)" if update != "1" else f"{held}.add_(1)",
        )
    )
    return f"{name} + {held}.mean()"


@call(1)
def checkpointed(d: Names, name: str, v: torch.Tensor) -> str | None:
    module = d.earlier_module()
    if not floats(v):
        return None
    if module and d.rng.random() < 0.5:
        return f"checkpoint({module}, {name}, use_reentrant=False)"
    if 3 <= v.dim() <= 5:
        n, c = v.dim() - 2, v.shape[1]
        second = one_of(d, f"nn.BatchNorm{n}d({c})", "nn.Tanh()", f"nn.GroupNorm(1, {c})")
        block = d.module(f"nn.Sequential(nn.Conv{n}d({c}, {c}, 3, padding=1), {second})")
        if d.rng.random() < 0.3:
            inner = f"checkpoint({block}, t.tanh(), use_reentrant=False)"
            return f"checkpoint(lambda t: {inner} * t, {name}, use_reentrant=False)"
        return f"checkpoint({block}, {name}, use_reentrant=False)"
    return f"checkpoint(lambda t: t.tanh() * t, {name}, use_reentrant=False)"


@call(1)
def made(d: Names, name: str, v: torch.Tensor) -> str | None:
    """Tensors that forward makes."""
    if not floats(v) or not v.dim():
        return None
    size, token = f"{name}.shape[-1]", d.parameter([1, 1, *v.shape[2:]])
    return one_of(
        d,
        f"{name} + torch.arange({size}, dtype={name}.dtype)",
        f"{name} + torch.linspace(-1, 1, {size}).to({name})",
        f"{name} + torch.zeros_like({name})",
        f"{name} * torch.ones({size}, {size}).to({name}).tril()[0]",
        f"{name}.new_ones({name}.shape) + {name}",
        f"torch.cat([{name}, torch.zeros_like({name})], {dim_of(d, v)})",
        f"torch.cat([{name}.new_zeros({name}.shape), {name}], {dim_of(d, v)})",
        f"{name} + torch.tensor([0.5]).to({name})",
        f"torch.full_like({name}, 0.5) * {name}",
        f"torch.cat([{token}.expand({name}.shape[0], -1, *{name}.shape[2:]), {name}], 1)",
    )


@call(0.7)
def grid_sampled(d: Names, name: str, v: torch.Tensor) -> str | None:
    if v.dim() != 4 or not floats(v):
        return None
    shape = f"[{name}.shape[0], {v.shape[1]}, {d.rng.randint(2, 7)}, {d.rng.randint(2, 7)}]"
    theta = d.parameter([1, 2, 3])
    more = f"align_corners={one_of(d, True, False)}"
    grid = f"F.affine_grid({theta}.expand({name}.shape[0], -1, -1), {shape}, {more})"
    mode, padding = one_of(d, "bilinear", "bilinear", "bicubic"), one_of(d, "zeros", "border")
    return f"F.grid_sample({name}, {grid}, mode={mode!r}, padding_mode={padding!r}, {more})"


@call(1)
def by_dtype(d: Names, name: str, v: torch.Tensor) -> str | None:
    """What follows from the dtype of a value, which autocast may change."""
    if not floats(v) or not v.dim():
        return None
    if 3 <= v.dim() <= 5 and d.rng.random() < 0.4:
        n, wide = v.dim() - 2, f"{name}_wide"
        layer = d.module(f"nn.Conv{n}d({v.shape[1]}, {d.rng.randint(1, 4)}, 1)")
        enabled = one_of(d, "enabled=False", "torch.bfloat16")
        given = f"{name}.float()" if enabled == "enabled=False" else name
        d.before(f"with torch.autocast('cpu', {enabled}): {wide} = {layer}({given}.to({layer}.weight.dtype))")
        return one_of(d, wide, f"{wide}.to({name}.dtype)")
    dim = dim_of(d, v)
    return one_of(
        d,
        f"({name} * 0.5 if {name}.dtype == torch.bfloat16 else {name})",
        f"({name} * 2 if torch.is_autocast_enabled('cpu') else {name})",
        f"{name}.masked_fill({name} > 0.5, torch.finfo({name}.dtype).min).softmax({dim})",
        f"{name}.float().square().to({name}.dtype)",
        f"torch.where({name} > 0, {name}, torch.zeros((), dtype={name}.dtype))",
        f"{name} + torch.finfo({name}.dtype).eps",
    )


@call(0.7)
def wordless(d: Names, name: str, v: torch.Tensor) -> str | None:
    """Parts without words."""
    if not floats(v) or not v.dim():
        return None
    dim = dim_of(d, v)
    n = v.shape[dim]
    none, cut = f"{name}.narrow({dim}, 0, 0)", d.rng.randint(0, n)
    last = f"{name}[..., :0]"
    return one_of(
        d,
        f"torch.cat([{none}.tanh(), {name}], {dim})",
        f"{name} + {none}.sum({dim}, keepdim=True)",
        f"torch.cat([t * 1.5 for t in {name}.split([0, {cut}, 0, {n - cut}], {dim})], {dim})",
        f"{name} + {d.parameter([1])} * {none}.prod()",
        f"{name}.index_select({dim}, {d.buffer('torch.tensor([], dtype=torch.long)')}).sum() + {name}",
        f"{last} @ {last}.mT" if v.dim() > 1 else f"{name} + {last}.sum()",
        f"{name} + torch.einsum('...c,cd->...d', {none}, {d.parameter([v.shape[-1], 3])}).sum()"
        if dim != v.dim() - 1
        else f"F.linear({last}, {d.parameter([3, 1])}[:, :0])",
    )
