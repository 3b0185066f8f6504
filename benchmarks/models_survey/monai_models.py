"""Models of monai: segmentation, classification, registration, autoencoders, generators; most of them 3-D."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.models_survey.entry import Entry

VOLUME, BIG, IMAGE = (1, 1, 32, 32, 32), (1, 1, 64, 64, 64), (2, 1, 64, 64)
LEVELS: dict[str, Any] = {"channels": (4, 8, 16), "strides": (2, 2)}


def _one(name: str, make: Callable[[], nn.Module], input: Any = VOLUME) -> Entry:
    return Entry("monai", name, make, input)


def entries() -> list[Entry]:
    """All models, narrow and shallow where the library has arguments for it."""
    return [*_segmentation(), *_transformers(), *_classification(), *_registration(), *_generation()]


def _segmentation() -> list[Entry]:
    from monai.networks import nets

    io: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
    flat: dict[str, Any] = {**io, "spatial_dims": 2}
    six = {"features": (4, 4, 8, 8, 16, 4)}
    kernels: dict[str, Any] = {
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 16],
    }
    light: dict[str, Any] = {"init_filters": 8, "blocks_down": (1, 1, 1), "blocks_up": (1, 1)}
    return [
        _one("UNet", partial(nets.UNet, **io, **LEVELS, num_res_units=2)),
        _one("UNet, 2-D, batch norm", partial(nets.UNet, **flat, **LEVELS, norm="batch"), IMAGE),
        _one("BasicUNet", partial(nets.BasicUNet, **io, **six)),
        _one("BasicUNet, 2-D", partial(nets.BasicUNet, **flat, **six), IMAGE),
        _one("BasicUNetPlusPlus", partial(nets.BasicUNetPlusPlus, **io, **six)),
        _one("DynUNet", partial(nets.DynUNet, **io, **kernels)),
        _one(
            "DynUNet, deep supervision",
            partial(nets.DynUNet, **io, **kernels, deep_supervision=True, deep_supr_num=1),
        ),
        _one("SegResNet", partial(nets.SegResNet, **io, **light)),
        _one("SegResNetVAE", partial(nets.SegResNetVAE, (32, 32, 32), **io, **light)),
        _one("SegResNetDS", partial(nets.SegResNetDS, **io, init_filters=8, blocks_down=(1, 1, 1))),
        _one("VNet", partial(nets.VNet, **io)),
        _one("AttentionUnet", partial(nets.AttentionUnet, **io, **LEVELS)),
        _one("HighResNet", partial(nets.HighResNet, **io)),
        _one(
            "FlexibleUNet",
            partial(
                nets.FlexibleUNet, 1, 2, "efficientnet-b0", decoder_channels=(32, 16, 8, 8, 4), spatial_dims=2
            ),
            IMAGE,
        ),
        _one("FlexUNet, resnet18", partial(nets.FlexibleUNet, 1, 2, "resnet18", spatial_dims=2), IMAGE),
        _one("DAF3D", partial(nets.DAF3D, 1, 2), BIG),
        _one("MedNeXt", partial(nets.MedNeXt, 3, 8, 1, 2, encoder_expansion_ratio=2)),
        _one("Quicknat", partial(nets.Quicknat, num_classes=2, num_filters=8), IMAGE),
        _one(
            "HoVerNet",
            partial(nets.HoVerNet, mode="fast", np_out_channels=2, out_classes=2),
            (1, 3, 256, 256),
        ),
        _one("DiNTS", _dints, BIG),
    ]


def _transformers() -> list[Entry]:
    from monai.networks import nets

    io: dict[str, Any] = {"in_channels": 1, "out_channels": 2}
    unetr = partial(nets.UNETR, **io, img_size=32, feature_size=4, hidden_size=24, mlp_dim=48, num_heads=2)
    swin = partial(
        nets.SwinUNETR, **io, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 2, 4), window_size=4
    )
    vit: dict[str, Any] = {"hidden_size": 24, "mlp_dim": 48, "num_layers": 2, "num_heads": 2}
    return [
        _one("UNETR", unetr),
        _one("SwinUNETR", swin, BIG),
        _one("ViTAutoEnc", partial(nets.ViTAutoEnc, 1, 64, 16, **vit), BIG),
    ]


def _dints() -> nn.Module:
    from monai.networks import nets

    space = nets.TopologyInstance(
        spatial_dims=3, num_blocks=6, num_depths=3, channel_mul=0.25, use_downsample=True
    )
    return nets.DiNTS(space, in_channels=1, num_classes=2, use_downsample=True)


def _classification() -> list[Entry]:
    from monai.networks import nets

    io: dict[str, Any] = {"spatial_dims": 3, "in_channels": 1}
    flat = {**io, "spatial_dims": 2}
    two = {"out_channels": 2}
    dense = partial(nets.DenseNet, **io, **two, init_features=8, growth_rate=4, block_config=(2, 2, 2))
    se: dict[str, Any] = {"layers": (1, 1, 1, 1), "reduction": 16, "num_classes": 2, "dropout_prob": None}
    residual = partial(
        nets.ResNet, block_inplanes=[8, 16, 16, 32], n_input_channels=1, num_classes=2, layers=[1, 1, 1, 1]
    )
    return [
        _one("DenseNet", dense),
        _one("SENet", partial(nets.SENet, **flat, block="se_bottleneck", groups=1, **se), IMAGE),
        _one(
            "SEResNet",
            partial(nets.SENet, **flat, block="se_resnet_bottleneck", groups=1, **se, inplanes=64),
            IMAGE,
        ),
        _one(
            "SEResNeXt",
            partial(nets.SENet, **flat, block="se_resnetxt_bottleneck", groups=32, **se, inplanes=64),
            IMAGE,
        ),
        _one("ResNet, basic", partial(residual, "basic")),
        _one("ResNet, bottleneck", partial(residual, "bottleneck")),
        _one(
            "EfficientNetBN",
            partial(nets.EfficientNetBN, "efficientnet-b0", pretrained=False, in_channels=1, num_classes=2),
            IMAGE,
        ),
        _one("Classifier", partial(nets.Classifier, (1, 64, 64), 2, (4, 8, 16), (2, 2, 2)), IMAGE),
        _one("Regressor", partial(nets.Regressor, (1, 64, 64), (1,), (4, 8, 16), (2, 2, 2)), IMAGE),
    ]


def _registration() -> list[Entry]:
    from monai.networks import nets

    io: dict[str, Any] = {"spatial_dims": 3, "in_channels": 2, "num_channel_initial": 4}
    local: dict[str, Any] = {"out_activation": None, "out_channels": 3}
    pair = (1, 2, 32, 32, 32)
    return [
        _one("RegUNet", partial(nets.RegUNet, **io, **local, depth=2), pair),
        _one("LocalNet", partial(nets.LocalNet, **io, **local, extract_levels=(0, 1, 2)), pair),
        _one("GlobalNet", partial(nets.GlobalNet, (32, 32, 32), **io, depth=2), pair),
        _one(
            "VoxelMorph",
            partial(nets.VoxelMorph, nets.VoxelMorphUNet(3, 2, 8, (8, 8), (8, 8, 8)), integration_steps=2),
            (VOLUME, VOLUME),
        ),
    ]


def _generation() -> list[Entry]:
    from monai.networks import nets

    io: dict[str, Any] = {"spatial_dims": 2, "in_channels": 1, "out_channels": 1}
    time = torch.tensor([3, 5])
    blocks: dict[str, Any] = {
        "channels": (8, 16),
        "attention_levels": (False, False),
        "norm_num_groups": 4,
        "num_res_blocks": 1,
    }
    attention = {**blocks, "attention_levels": (False, True), "num_head_channels": 8}
    vae = {**io, **blocks, "with_encoder_nonlocal_attn": False, "with_decoder_nonlocal_attn": False}
    samples: Any = {
        "downsample_parameters": ((2, 4, 1, 1),) * 2,
        "upsample_parameters": ((2, 4, 1, 1, 0),) * 2,
    }
    quantised: Any = {"channels": (8, 16), "num_res_layers": 1, "num_res_channels": (8, 16)}
    patches: dict[str, Any] = {"spatial_dims": 2, "channels": 8, "in_channels": 1}
    scales: dict[str, Any] = {"num_d": 2, "num_layers_d": 2, "minimum_size_im": 64}
    return [
        _one("AutoEncoder", partial(nets.AutoEncoder, **io, channels=(4, 8, 16), strides=(2, 2, 2)), IMAGE),
        _one(
            "VarAutoEncoder", partial(nets.VarAutoEncoder, 2, (1, 64, 64), 1, 8, (4, 8, 16), (2, 2, 2)), IMAGE
        ),
        _one("AutoencoderKL, no attention", partial(nets.AutoencoderKL, **vae), IMAGE),
        _one("VQVAE", partial(nets.VQVAE, **io, **quantised, **samples), IMAGE),
        _one("DiffusionModelUNet", partial(nets.DiffusionModelUNet, **io, **blocks), (IMAGE, time)),
        _one(
            "DiffusionModelUNet, attention",
            partial(nets.DiffusionModelUNet, **io, **attention),
            (IMAGE, time),
        ),
        _one("Generator", partial(nets.Generator, (8,), (8, 8, 8), (8, 4, 1), (2, 2, 2)), (2, 8)),
        _one("Discriminator", partial(nets.Discriminator, (1, 64, 64), (4, 8, 16), (2, 2, 2)), IMAGE),
        _one("Critic", partial(nets.Critic, (1, 64, 64), (4, 8, 16), (2, 2, 2)), IMAGE),
        _one("PatchDiscriminator", partial(nets.PatchDiscriminator, **patches), IMAGE),
        _one(
            "MultiScalePatchDiscriminator",
            partial(nets.MultiScalePatchDiscriminator, **scales, **patches),
            IMAGE,
        ),
        _one(
            "SPADENet", partial(nets.SPADENet, 2, 1, 1, 3, (64, 64), [8, 16], is_vae=False), ((1, 3, 64, 64),)
        ),
    ]
