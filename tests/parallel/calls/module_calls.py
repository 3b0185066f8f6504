"""Models that call the modules of torch.nn, with many arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from called import SHAPES, Call, Called, alone, causal, labels, loss, padded, param, rows, signs
from torch import nn

ACTIVATIONS: list[Callable[[], nn.Module]] = [
    *(nn.ELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardtanh, nn.Hardswish, nn.LeakyReLU, nn.LogSigmoid, nn.ReLU),
    *(
        nn.ReLU6,
        nn.SELU,
        nn.CELU,
        nn.GELU,
        nn.Sigmoid,
        nn.SiLU,
        nn.Mish,
        nn.Softplus,
        nn.Softshrink,
        nn.Softsign,
    ),
    *(nn.Tanh, nn.Tanhshrink, nn.Identity, nn.PReLU, lambda: nn.PReLU(8), lambda: nn.RReLU(0.3, 0.3)),
    *(lambda: nn.Threshold(0.1, 0.5), lambda: nn.GLU(1), lambda: nn.GLU(), lambda: nn.Softmin(1)),
    *(
        lambda: nn.Softmax(1),
        lambda: nn.LogSoftmax(1),
        lambda: nn.ReLU(inplace=True),
        lambda: nn.ELU(inplace=True),
    ),
    *(lambda: nn.Dropout(0.0), lambda: nn.AlphaDropout(0.0), lambda: nn.FeatureAlphaDropout(0.0)),
    *(lambda: nn.Dropout1d(0.0), lambda: nn.Flatten(), lambda: nn.Flatten(0), lambda: nn.Flatten(1, 2)),
    *(
        lambda: nn.Unflatten(1, (2, 4)),
        lambda: nn.LayerNorm(8),
        lambda: nn.LayerNorm((8, 8)),
        lambda: nn.RMSNorm(8),
    ),
    *(lambda: nn.Linear(8, 5), lambda: nn.GroupNorm(4, 8), lambda: nn.LocalResponseNorm(3)),
    *(lambda: nn.Upsample(scale_factor=2), lambda: nn.ConvTranspose1d(8, 4, 3, 2)),
    *(
        lambda: nn.Upsample(size=(11,), mode="linear"),
        lambda: nn.Unfold((2, 1)),
        lambda: nn.ChannelShuffle(4),
    ),
]
# classes for maps of one to three dimensions, and their arguments
BY_DIMS: dict[str, tuple[Any, ...]] = {
    **{f"{kind}Pool": (3, 2, 1) for kind in ("Max", "Avg")},
    **{f"Adaptive{kind}Pool": (2,) for kind in ("Max", "Avg")},
    "LPPool": (2, 2),
    "ReflectionPad": (1,),
    "ReplicationPad": (1,),
    "ZeroPad": (1,),
    "ConstantPad": (1, 0.5),
    "CircularPad": (1,),
    "BatchNorm": (8,),
    "InstanceNorm": (8,),
    "Dropout": (0.0,),
}
UNBATCHED_TOO = [name for name in BY_DIMS if name not in ("BatchNorm", "InstanceNorm")]


def of_dims(name: str, dims: int, batch: bool = True, **settings: Any) -> Callable[[], Called]:
    """A class of torch.nn for maps of some dimensions."""
    kind = getattr(nn, f"{name}{dims}d")
    return lambda: alone(kind(*BY_DIMS[name], **settings), dims, batch)


def decoder_layer() -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)


def encoder_layer(**settings: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, **settings)


def transformer() -> nn.Module:
    return nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)


def each(makes: list[Callable[[], nn.Module]]) -> dict[str, Callable[[], Called]]:
    """By what they print: a model with each of the modules."""
    found = {}
    for make in makes:
        found[f"{make()} {len(found)}"] = lambda make=make: alone(make())  # type: ignore[misc]
    return found


H_OF_G: Call = lambda m, h, g: (h, g)  # noqa: E731
MODULES: dict[str, Callable[[], Called]] = {
    **each(ACTIVATIONS),
    **{f"{name}{d}d": of_dims(name, d) for name in BY_DIMS for d in SHAPES},
    **{f"{name}{d}d of one sample": of_dims(name, d, False) for name in UNBATCHED_TOO for d in SHAPES},
    **{f"InstanceNorm{d}d with weights": of_dims("InstanceNorm", d, affine=True) for d in SHAPES},
    **{f"InstanceNorm{d}d of one sample": of_dims("InstanceNorm", d, False, affine=True) for d in SHAPES},
    **{f"InstanceNorm{d}d, tracked": of_dims("InstanceNorm", d, track_running_stats=True) for d in SHAPES},
    "ConvTranspose2d": lambda: alone(nn.ConvTranspose2d(8, 4, 3, 2), 2),
    "ConvTranspose3d": lambda: alone(nn.ConvTranspose3d(8, 4, 3, 2), 3),
    "Softmax2d": lambda: alone(nn.Softmax2d(), 2),
    "PixelShuffle": lambda: alone(nn.PixelShuffle(2), 2),
    "PixelUnshuffle": lambda: alone(nn.PixelUnshuffle(2), 2),
    "PixelShuffle of one sample": lambda: alone(nn.PixelShuffle(2), 2, False),
    "Fold": lambda: alone(nn.Fold((4, 8), (2, 2), stride=2)),
    "CrossMapLRN2d": lambda: alone(nn.CrossMapLRN2d(3), 2),
    "UpsamplingNearest2d": lambda: alone(nn.UpsamplingNearest2d(scale_factor=2), 2),
    "UpsamplingBilinear2d": lambda: alone(nn.UpsamplingBilinear2d(scale_factor=2), 2),
    "FractionalMaxPool2d": lambda: alone(
        nn.FractionalMaxPool2d(2, output_size=3, _random_samples=torch.full((4, 8, 2), 0.4).double()), 2
    ),
    "FractionalMaxPool3d": lambda: alone(
        nn.FractionalMaxPool3d(2, output_size=2, _random_samples=torch.full((4, 8, 3), 0.4).double()), 3
    ),
    **{
        f"MaxUnpool{d}d": lambda d=d: Called(  # type: ignore[misc]
            lambda m, h, g: m.u(*m.p(h)),
            d,
            p=getattr(nn, f"MaxPool{d}d")(2, return_indices=True),
            u=getattr(nn, f"MaxUnpool{d}d")(2),
        )
        for d in SHAPES
    },
    "MaxUnpool1d with the size": lambda: Called(
        lambda m, h, g: m.u(*m.p(h[:, :, :7]), output_size=h[:, :, :7].size()),
        p=nn.MaxPool1d(2, return_indices=True),
        u=nn.MaxUnpool1d(2),
    ),
    "ConvTranspose1d with the size": lambda: Called(
        lambda m, h, g: m.t(h, output_size=[18]), t=nn.ConvTranspose1d(8, 4, 3, 2)
    ),
    # several tensors, in any order and by name
    "Bilinear": lambda: Called(lambda m, h, g: m.b(rows(h), rows(g)), b=nn.Bilinear(8, 8, 5)),
    "Bilinear by name": lambda: Called(
        lambda m, h, g: m.b(input2=rows(h), input1=rows(g)), b=nn.Bilinear(8, 8, 5)
    ),
    "Bilinear of one": lambda: Called(lambda m, h, g: (lambda r: m.b(r, r))(rows(h)), b=nn.Bilinear(8, 8, 5)),
    "Bilinear with a parameter": lambda: Called(
        lambda m, h, g: m.b(m.p, rows(h)), b=nn.Bilinear(8, 8, 5), p=param(4, 8, 8)
    ),
    "CosineSimilarity": lambda: Called(lambda m, h, g: m.c(h, g), c=nn.CosineSimilarity()),
    "CosineSimilarity with prototypes": lambda: Called(
        lambda m, h, g: m.c(m.p, h), c=nn.CosineSimilarity(-1), p=param(8)
    ),
    "PairwiseDistance": lambda: Called(lambda m, h, g: m.c(g, h), c=nn.PairwiseDistance()),
    "PairwiseDistance from a buffer": lambda: Called(
        lambda m, h, g: m.c(x2=h, x1=m.p), c=nn.PairwiseDistance(1), p=torch.rand(4, 8, 8)
    ),
    "Embedding": lambda: Called(lambda m, h, g: m.e(h.argmax(1)), e=nn.Embedding(8, 5)),
    "EmbeddingBag": lambda: Called(lambda m, h, g: m.e(h.argmax(1)), e=nn.EmbeddingBag(8, 5)),
    "EmbeddingBag with offsets": lambda: Called(
        lambda m, h, g: m.e(h.argmax(1).flatten(), m.o), e=nn.EmbeddingBag(8, 5), o=torch.tensor([0, 5, 9])
    ),
    "EmbeddingBag with weights": lambda: Called(
        lambda m, h, g: m.e(h.argmax(1), per_sample_weights=g.sum(1)), e=nn.EmbeddingBag(8, 5, mode="sum")
    ),
    # recurrent layers: states by position, by name, learned, the input again
    **{
        f"{kind}: {name}": lambda kind=kind, call=call: Called(call, g=getattr(nn, kind)(8, 8), s=param(4, 8))  # type: ignore[misc]
        for kind in ("GRUCell", "RNNCell")
        for name, call in {
            "no state": lambda m, h, g: m.g(h[:, :, 0]),
            "a state": lambda m, h, g: m.g(h[:, :, 0], g[:, :, 0]),
            "a learned state": lambda m, h, g: m.g(h[:, :, 0], m.s),
            "the input as state": lambda m, h, g: (lambda r: m.g(r, r))(h[:, :, 0]),
            "by name": lambda m, h, g: m.g(hx=g[:, :, 1], input=h[:, :, 0]),
            "a learned input": lambda m, h, g: m.g(m.s, h[:, :, 0]),
        }.items()
    },
    "LSTMCell": lambda: Called(
        lambda m, h, g: torch.cat(m.g(h[:, :, 0], (g[:, :, 0], m.s)), 1), g=nn.LSTMCell(8, 8), s=param(4, 8)
    ),
    "LSTMCell by name": lambda: Called(
        lambda m, h, g: m.g(hx=(m.s, g[:, :, 0]), input=h[:, :, 0])[0], g=nn.LSTMCell(8, 8), s=param(4, 8)
    ),
    **{
        kind: lambda kind=kind: Called(
            lambda m, h, g: m.g(rows(h))[0], g=getattr(nn, kind)(8, 6, batch_first=True)
        )  # type: ignore[misc]
        for kind in ("RNN", "GRU", "LSTM")
    },
    "GRU with a learned state": lambda: Called(
        lambda m, h, g: m.g(rows(h), m.s)[0], g=nn.GRU(8, 6, batch_first=True), s=param(1, 4, 6)
    ),
    # attention and transformers: masks of buffers and of values, memory by name, learned queries
    "MultiheadAttention with masks": lambda: Called(
        lambda m, h, g: m.a(rows(h), rows(g), rows(g), key_padding_mask=m.k, attn_mask=m.c)[0],
        a=nn.MultiheadAttention(8, 2, batch_first=True),
        k=padded(),
        c=causal() < 0,
    ),
    "TransformerEncoderLayer": lambda: Called(lambda m, h, g: m.e(rows(h)), e=encoder_layer()),
    "TransformerEncoderLayer, norm first": lambda: Called(
        lambda m, h, g: m.e(rows(h)), e=encoder_layer(norm_first=True, activation="gelu")
    ),
    "TransformerEncoderLayer with a mask": lambda: Called(
        lambda m, h, g: m.e(rows(h), src_mask=m.c), e=encoder_layer(), c=causal()
    ),
    "TransformerEncoderLayer with a mask by position": lambda: Called(
        lambda m, h, g: m.e(rows(h), m.c), e=encoder_layer(), c=causal() < 0
    ),
    "TransformerEncoderLayer with a mask that is made": lambda: Called(
        lambda m, h, g: m.e(rows(h), nn.Transformer.generate_square_subsequent_mask(8)), e=encoder_layer()
    ),
    "TransformerEncoderLayer with padding": lambda: Called(
        lambda m, h, g: m.e(rows(h), src_key_padding_mask=m.k), e=encoder_layer(), k=padded()
    ),
    "TransformerEncoderLayer with padding of the input": lambda: Called(
        lambda m, h, g: m.e(rows(h), src_key_padding_mask=h[:, 0] > 9), e=encoder_layer()
    ),
    "TransformerEncoder": lambda: Called(
        lambda m, h, g: m.e(rows(h), mask=m.c), e=nn.TransformerEncoder(encoder_layer(), 2), c=causal()
    ),
    "TransformerEncoder, causal": lambda: Called(
        lambda m, h, g: m.e(rows(h), mask=m.c, is_causal=True),
        e=nn.TransformerEncoder(encoder_layer(), 2),
        c=causal(),
    ),
    "TransformerEncoder with padding": lambda: Called(
        lambda m, h, g: m.e(rows(h), src_key_padding_mask=m.k),
        e=nn.TransformerEncoder(encoder_layer(), 2, nn.LayerNorm(8)),
        k=padded(),
    ),
    "TransformerDecoderLayer": lambda: Called(lambda m, h, g: m.d(rows(h), rows(g)), d=decoder_layer()),
    "TransformerDecoderLayer by name": lambda: Called(
        lambda m, h, g: m.d(memory=rows(g), tgt=rows(h)), d=decoder_layer()
    ),
    "TransformerDecoderLayer of one": lambda: Called(
        lambda m, h, g: (lambda r: m.d(r, r))(rows(h)), d=decoder_layer()
    ),
    "TransformerDecoderLayer with masks": lambda: Called(
        lambda m, h, g: m.d(rows(h), rows(g), tgt_mask=m.c, memory_key_padding_mask=m.k),
        d=decoder_layer(),
        c=causal(),
        k=padded(),
    ),
    "TransformerDecoder with learned queries": lambda: Called(
        lambda m, h, g: m.d(m.q, rows(h)), d=nn.TransformerDecoder(decoder_layer(), 2), q=param(4, 8, 8)
    ),
    "Transformer with learned queries": lambda: Called(
        lambda m, h, g: m.t(rows(h), m.q), t=transformer(), q=param(4, 5, 8)
    ),
    "Transformer with masks": lambda: Called(
        lambda m, h, g: m.t(rows(h), rows(g), tgt_mask=m.c, tgt_is_causal=True, src_key_padding_mask=m.k),
        t=transformer(),
        c=causal(),
        k=padded(),
    ),
    # losses as parts of a model
    **{
        f"{name}, {kind}": loss(getattr(nn, name)(), call, t=torch.rand(4, 8, 8))
        for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")
        for kind, call in {
            "two maps": H_OF_G,
            "a buffer": lambda m, h, g: (h, m.t),
            "it first": lambda m, h, g: (m.t, h),
        }.items()
    },
    "MSELoss of one": loss(nn.MSELoss(), lambda m, h, g: (h, h)),
    "MSELoss of words": loss(nn.MSELoss(reduction="none"), lambda m, h, g: (g, h)),
    "BCELoss": loss(nn.BCELoss(), lambda m, h, g: (h.sigmoid(), m.t), t=torch.rand(4, 8, 8)),
    "BCELoss with weights": loss(
        nn.BCELoss(torch.rand(8).double()), lambda m, h, g: (h.sigmoid(), m.t), t=torch.rand(4, 8, 8)
    ),
    "BCEWithLogitsLoss": loss(
        nn.BCEWithLogitsLoss(pos_weight=torch.rand(8).double()),
        lambda m, h, g: (h, m.t),
        t=torch.rand(4, 8, 8),
    ),
    "CrossEntropyLoss": loss(
        nn.CrossEntropyLoss(torch.rand(8).double(), label_smoothing=0.1), lambda m, h, g: (h, m.t), t=labels()
    ),
    "CrossEntropyLoss, labels of the input": loss(nn.CrossEntropyLoss(), lambda m, h, g: (h, g.argmax(1))),
    "NLLLoss": loss(nn.NLLLoss(ignore_index=3), lambda m, h, g: (h.log_softmax(1), m.t), t=labels()),
    "KLDivLoss": loss(nn.KLDivLoss(reduction="sum", log_target=True), lambda m, h, g: (h.log_softmax(1), g)),
    "PoissonNLLLoss": loss(nn.PoissonNLLLoss(), lambda m, h, g: (h, m.t), t=torch.rand(4, 8, 8)),
    "GaussianNLLLoss": loss(nn.GaussianNLLLoss(), lambda m, h, g: (h, g, m.t), t=torch.rand(4, 8, 8) + 0.1),
    "GaussianNLLLoss, variance of the input": loss(
        nn.GaussianNLLLoss(), lambda m, h, g: (h, m.t, g.exp()), t=torch.rand(4, 8, 8)
    ),
    "SoftMarginLoss": loss(nn.SoftMarginLoss(), lambda m, h, g: (h, m.t), t=signs()),
    "HingeEmbeddingLoss": loss(nn.HingeEmbeddingLoss(), lambda m, h, g: (h, m.t), t=signs()),
    "MarginRankingLoss": loss(nn.MarginRankingLoss(), lambda m, h, g: (h, g, m.t), t=signs()),
    "CosineEmbeddingLoss": loss(
        nn.CosineEmbeddingLoss(), lambda m, h, g: (h.flatten(1), g.flatten(1), m.t), t=signs()[:, 0, 0]
    ),
    "TripletMarginLoss": loss(nn.TripletMarginLoss(), lambda m, h, g: (h, g, m.t), t=torch.rand(4, 8, 8)),
    "TripletMarginWithDistanceLoss": loss(
        nn.TripletMarginWithDistanceLoss(swap=True), lambda m, h, g: (h, m.t, g), t=torch.rand(4, 8, 8)
    ),
    "MultiMarginLoss": loss(nn.MultiMarginLoss(), lambda m, h, g: (h[:, :, 0], m.t), t=labels()[:, 1]),
    "MultiLabelMarginLoss": loss(
        nn.MultiLabelMarginLoss(), lambda m, h, g: (h[:, :, 0], m.t), t=labels() - 1
    ),
    "MultiLabelSoftMarginLoss": loss(
        nn.MultiLabelSoftMarginLoss(), lambda m, h, g: (h[:, :, 0], m.t), t=(signs()[:, 0] + 1) / 2
    ),
    "CTCLoss": loss(
        nn.CTCLoss(),
        lambda m, h, g: (h.permute(2, 0, 1).log_softmax(2), m.t, (8, 8, 7, 6), (3, 2, 3, 1)),
        t=labels()[:, 1:4],
    ),
    "CTCLoss with lengths in buffers": loss(
        nn.CTCLoss(),
        lambda m, h, g: (h.permute(2, 0, 1).log_softmax(2), m.t, m.a, m.b),
        t=labels()[:, 1:4],
        a=torch.tensor([8, 8, 7, 6]),
        b=torch.tensor([3, 2, 3, 1]),
    ),
}
if hasattr(nn, "LinearCrossEntropyLoss"):  # of later versions
    MODULES["LinearCrossEntropyLoss"] = lambda: Called(
        lambda m, h, g: m.l(rows(h).flatten(0, 1), m.t),
        l=nn.LinearCrossEntropyLoss(8, 5),
        t=labels().flatten() % 5,
    )
