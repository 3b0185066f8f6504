"""Models of diffusers: autoencoders of images and videos, their decoders, and U-Nets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.models_survey.entry import Entry, Method

IMAGE, LATENT = (1, 3, 64, 64), (1, 4, 16, 16)
FRAMES = (1, 4, 3, 8, 8)  # latents of a video
WIDTHS = (16, 32)
KL: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": WIDTHS,
    "norm_num_groups": 8,
}
WAN: dict[str, Any] = {
    "base_dim": 8,
    "z_dim": 4,
    "dim_mult": [1, 2],
    "num_res_blocks": 1,
    "temperal_downsample": [True],
    "latents_mean": [0.0] * 4,
    "latents_std": [1.0] * 4,
}
UNET: dict[str, Any] = {"block_out_channels": WIDTHS, "norm_num_groups": 8, "layers_per_block": 1}
CONDITIONED: dict[str, Any] = {
    **UNET,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "cross_attention_dim": 16,
    "attention_head_dim": 4,
}
OPTIONS: dict[str, dict[str, Any]] = {  # class -> options that make a narrow model
    "AutoencoderKL": KL,
    "VQModel": KL,
    "AutoencoderKLFlux2": {**KL, "latent_channels": 4},
    "AutoencoderTiny": {
        "encoder_block_out_channels": (16,) * 3,
        "decoder_block_out_channels": (16,) * 3,
        "num_encoder_blocks": (1, 1, 1),
        "num_decoder_blocks": (1, 1, 1),
    },
    "AutoencoderDC": {
        "latent_channels": 8,
        "attention_head_dim": 8,
        "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "encoder_block_out_channels": WIDTHS,
        "decoder_block_out_channels": WIDTHS,
        "encoder_layers_per_block": (1, 1),
        "decoder_layers_per_block": (1, 1),
        "encoder_qkv_multiscales": ((), (5,)),
        "decoder_qkv_multiscales": ((), (5,)),
    },
    "AsymmetricAutoencoderKL": {
        "down_block_types": KL["down_block_types"],
        "up_block_types": KL["up_block_types"],
        "down_block_out_channels": WIDTHS,
        "up_block_out_channels": WIDTHS,
        "norm_num_groups": 8,
    },
    "AutoencoderKLHunyuanImage": {
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 8,
        "block_out_channels": (32, 64),
        "layers_per_block": 1,
        "spatial_compression_ratio": 2,
        "sample_size": 64,
    },
    "AutoencoderOobleck": {
        "encoder_hidden_size": 8,
        "downsampling_ratios": [2, 4],
        "channel_multiples": [1, 2],
        "decoder_channels": 8,
        "decoder_input_channels": 4,
    },
    "AutoencoderKLTemporalDecoder": {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "block_out_channels": (32, 32),
    },
    "AutoencoderKLWan": WAN,
    "AutoencoderKLQwenImage": WAN,
    "AutoencoderKLCogVideoX": {
        "down_block_types": ("CogVideoXDownBlock3D",) * 2,
        "up_block_types": ("CogVideoXUpBlock3D",) * 2,
        "block_out_channels": (16, 16),
        "latent_channels": 4,
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "temporal_compression_ratio": 2,
    },
    "AutoencoderKLLTXVideo": {
        "latent_channels": 8,
        "block_out_channels": (8, 8, 8, 8),
        "decoder_block_out_channels": (8, 8, 8, 8),
        "layers_per_block": (1,) * 5,
        "decoder_layers_per_block": (1,) * 5,
        "patch_size": 1,
    },
    "AutoencoderKLMochi": {
        "encoder_block_out_channels": (32, 32, 32, 32),
        "decoder_block_out_channels": (32, 32, 32, 32),
        "latent_channels": 4,
        "layers_per_block": (1,) * 5,
        "latents_mean": (0.0,) * 4,
        "latents_std": (1.0,) * 4,
    },
    "AutoencoderKLHunyuanVideo": {
        "latent_channels": 4,
        "block_out_channels": (8, 8, 8, 8),
        "layers_per_block": 1,
        "norm_num_groups": 4,
    },
    "AutoencoderKLAllegro": {
        "block_out_channels": (8, 8, 8, 8),
        "layers_per_block": 1,
        "norm_num_groups": 2,
    },
    "AutoencoderKLMagvit": {
        "latent_channels": 4,
        "block_out_channels": [8, 8, 8, 8],
        "layers_per_block": 1,
        "norm_num_groups": 2,
    },
    "UNet2DModel": {
        **UNET,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    },
    "UNet2DConditionModel": {**CONDITIONED, "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")},
    "ControlNetModel": {**CONDITIONED, "conditioning_embedding_out_channels": (8, 8)},
    "UNet3DConditionModel": {
        "block_out_channels": (32, 32),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
        "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        "cross_attention_dim": 16,
        "attention_head_dim": 8,
    },
    "UNet1DModel": {
        "sample_size": 256,
        "in_channels": 14,
        "out_channels": 14,
        "time_embedding_type": "positional",
        "use_timestep_embedding": True,
        "down_block_types": ("DownResnetBlock1D",) * 3,
        "mid_block_type": "MidResTemporalBlock1D",
        "up_block_types": ("UpResnetBlock1D",) * 2,
        "out_block_type": "OutConv1DBlock",
        "act_fn": "swish",
        "block_out_channels": (16, 32, 64),
    },
}


def entries() -> list[Entry]:
    """All models, narrow."""
    return [*_images(), *_videos(), *_unets()]


def _maker(name: str, **changes: Any) -> Callable[[], Any]:
    """What makes the model of a class with its `OPTIONS`, some of them changed."""
    import diffusers

    return partial(getattr(diffusers, name), **OPTIONS[name] | changes)


def _one(name: str, make: Callable[[], nn.Module], input: Any) -> Entry:
    return Entry("diffusers", name, make, input)


def _decoder(name: str, latent: Any, **given: Any) -> Entry:
    """The method `decode` of an autoencoder. given: its arguments besides the latents."""
    make = _maker(name)
    arguments = {"return_dict": False, **given}
    return _one(f"{name}, decode", lambda: Method(make(), "decode", **arguments), latent)


def _pair(name: str, whole: Any, latent: Any) -> list[Entry]:
    """An autoencoder from image to image, and its decoder alone."""
    return [_one(name, _maker(name), {"sample": whole, "return_dict": False}), _decoder(name, latent)]


def _images() -> list[Entry]:
    without_attention = _maker("AutoencoderKL", mid_block_add_attention=False)
    with_dataclass = _maker("AutoencoderKL")
    return [
        *_pair("AutoencoderKL", IMAGE, LATENT),
        _one(
            "AutoencoderKL, decode, no attention",
            lambda: Method(without_attention(), "decode", return_dict=False),
            LATENT,
        ),
        _one("AutoencoderKL, decode, dataclass", lambda: Method(with_dataclass(), "decode"), LATENT),
        *_pair("VQModel", IMAGE, (1, 3, 16, 16)),
        *_pair("AutoencoderTiny", IMAGE, (1, 4, 16, 16)),
        *_pair("AutoencoderDC", (1, 3, 32, 32), (1, 8, 16, 16)),
        *_pair("AsymmetricAutoencoderKL", IMAGE, LATENT),
        *_pair("AutoencoderKLFlux2", IMAGE, LATENT),
        *_pair("AutoencoderKLHunyuanImage", IMAGE, (1, 8, 16, 16)),
        *_pair("AutoencoderOobleck", (1, 2, 1024), (1, 4, 64)),
    ]


def _videos() -> list[Entry]:
    allegro = _maker("AutoencoderKLAllegro")
    return [
        _decoder("AutoencoderKLTemporalDecoder", (4, 4, 16, 16), num_frames=4),
        *_pair("AutoencoderKLWan", (1, 3, 5, 32, 32), FRAMES),
        *_pair("AutoencoderKLQwenImage", (1, 3, 5, 32, 32), FRAMES),
        *_pair("AutoencoderKLCogVideoX", (1, 3, 5, 32, 32), (1, 4, 2, 16, 16)),
        *_pair("AutoencoderKLLTXVideo", (1, 3, 9, 32, 32), (1, 8, 2, 4, 4)),
        _decoder("AutoencoderKLMochi", FRAMES),
        _decoder("AutoencoderKLHunyuanVideo", FRAMES),
        _one("AutoencoderKLAllegro, decoder", lambda: allegro().decoder, FRAMES),
        _decoder("AutoencoderKLMagvit", FRAMES),
    ]


def _unets() -> list[Entry]:
    convolutional = _maker(
        "UNet2DModel",
        add_attention=False,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
    )
    time = torch.tensor([3, 5])
    noise, words = (2, 4, 16, 16), (2, 7, 16)
    step = {"timestep": time, "encoder_hidden_states": words, "return_dict": False}
    images = {"sample": (2, 3, 32, 32), "timestep": time}
    control = {"sample": noise, "controlnet_cond": (2, 3, 32, 32), **step}
    signals = {"sample": (2, 14, 256), "timestep": time, "return_dict": False}
    return [
        _one("UNet2DModel", _maker("UNet2DModel"), images),
        _one("UNet2DModel, no attention", convolutional, {**images, "return_dict": False}),
        _one("UNet2DConditionModel", _maker("UNet2DConditionModel"), {"sample": noise, **step}),
        _one("ControlNetModel", _maker("ControlNetModel"), control),
        _one(
            "UNet3DConditionModel",
            _maker("UNet3DConditionModel"),
            {"sample": (2, 4, 2, 16, 16), **step},
        ),
        _one("UNet1DModel", _maker("UNet1DModel"), signals),
    ]
