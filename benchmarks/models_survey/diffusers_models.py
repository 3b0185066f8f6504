"""Models of diffusers: autoencoders of images and videos, their decoders, and U-Nets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.models_survey.entry import Entry, Method

IMAGE, LATENT = (1, 3, 64, 64), (1, 4, 16, 16)
WIDTHS = (16, 32)
TIME = torch.tensor([3, 5])


def entries() -> list[Entry]:
    """All models, narrow."""
    return [*_images(), *_videos(), *_unets()]


def _one(name: str, make: Callable[[], nn.Module], input: Any, trains: bool = True) -> Entry:
    return Entry("diffusers", name, make, input, trains)


def _pair(name: str, make: Callable[[], nn.Module], whole: Any, latent: Any) -> list[Entry]:
    """An autoencoder from image to image, and its decoder alone."""
    given = {"sample": whole, "return_dict": False}
    decoder = lambda: Method(make(), "decode", return_dict=False)  # noqa: E731
    return [_one(name, make, given), _one(f"{name}, decode", decoder, latent)]


def _images() -> list[Entry]:
    import diffusers

    down, up = ("DownEncoderBlock2D",) * 2, ("UpDecoderBlock2D",) * 2
    groups: dict[str, Any] = {"norm_num_groups": 8}
    kl: dict[str, Any] = {"down_block_types": down, "up_block_types": up, "block_out_channels": WIDTHS}
    sizes = {"encoder_block_out_channels": (16,) * 3, "decoder_block_out_channels": (16,) * 3}
    tiny = partial(
        diffusers.AutoencoderTiny, **sizes, num_encoder_blocks=(1, 1, 1), num_decoder_blocks=(1, 1, 1)
    )
    dc = partial(
        diffusers.AutoencoderDC,
        latent_channels=8,
        attention_head_dim=8,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=WIDTHS,
        decoder_block_out_channels=WIDTHS,
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
    )
    asymmetric = partial(
        diffusers.AsymmetricAutoencoderKL,
        down_block_types=down,
        up_block_types=up,
        down_block_out_channels=WIDTHS,
        up_block_out_channels=WIDTHS,
        **groups,
    )
    flux2 = partial(diffusers.AutoencoderKLFlux2, **kl, **groups, latent_channels=4)
    hunyuan = partial(
        diffusers.AutoencoderKLHunyuanImage,
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        spatial_compression_ratio=2,
        sample_size=64,
    )
    oobleck = partial(
        diffusers.AutoencoderOobleck,
        encoder_hidden_size=8,
        downsampling_ratios=[2, 4],
        channel_multiples=[1, 2],
        decoder_channels=8,
        decoder_input_channels=4,
    )
    kl_model, vq = (
        partial(diffusers.AutoencoderKL, **kl, **groups),
        partial(diffusers.VQModel, **kl, **groups),
    )
    return [
        *_pair("AutoencoderKL", kl_model, IMAGE, LATENT),
        _one(
            "AutoencoderKL, decode, no attention",
            lambda: Method(kl_model(mid_block_add_attention=False), "decode", return_dict=False),
            LATENT,
        ),
        _one("AutoencoderKL, decode, dataclass", lambda: Method(kl_model(), "decode"), LATENT),
        *_pair("VQModel", vq, IMAGE, (1, 3, 16, 16)),
        *_pair("AutoencoderTiny", tiny, IMAGE, (1, 4, 16, 16)),
        *_pair("AutoencoderDC", dc, (1, 3, 32, 32), (1, 8, 16, 16)),
        *_pair("AsymmetricAutoencoderKL", asymmetric, IMAGE, LATENT),
        *_pair("AutoencoderKLFlux2", flux2, IMAGE, LATENT),
        *_pair("AutoencoderKLHunyuanImage", hunyuan, IMAGE, (1, 8, 16, 16)),
        *_pair("AutoencoderOobleck", oobleck, (1, 2, 1024), (1, 4, 64)),
    ]


def _videos() -> list[Entry]:
    import diffusers

    temporal = partial(
        diffusers.AutoencoderKLTemporalDecoder,
        down_block_types=("DownEncoderBlock2D",) * 2,
        block_out_channels=(32, 32),
    )
    wan = partial(
        diffusers.AutoencoderKLWan,
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    cog = partial(
        diffusers.AutoencoderKLCogVideoX,
        down_block_types=("CogVideoXDownBlock3D",) * 2,
        up_block_types=("CogVideoXUpBlock3D",) * 2,
        block_out_channels=(16, 16),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=8,
        temporal_compression_ratio=2,
    )
    ltx = partial(
        diffusers.AutoencoderKLLTXVideo,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
        patch_size=1,
    )
    mochi = partial(
        diffusers.AutoencoderKLMochi,
        encoder_block_out_channels=(32, 32, 32, 32),
        decoder_block_out_channels=(32, 32, 32, 32),
        latent_channels=4,
        layers_per_block=(1,) * 5,
        latents_mean=(0.0,) * 4,
        latents_std=(1.0,) * 4,
    )
    hunyuan = partial(
        diffusers.AutoencoderKLHunyuanVideo,
        latent_channels=4,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=4,
    )
    allegro = partial(
        diffusers.AutoencoderKLAllegro,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        norm_num_groups=2,
    )
    magvit = partial(
        diffusers.AutoencoderKLMagvit,
        latent_channels=4,
        block_out_channels=[8, 8, 8, 8],
        layers_per_block=1,
        norm_num_groups=2,
    )
    qwen = partial(
        diffusers.AutoencoderKLQwenImage,
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )
    frames = {"return_dict": False, "num_frames": 4}
    film = (1, 4, 3, 8, 8)
    return [
        _one(
            "AutoencoderKLTemporalDecoder, decode",
            lambda: Method(temporal(), "decode", **frames),
            (4, 4, 16, 16),
        ),
        *_pair("AutoencoderKLWan", wan, (1, 3, 5, 32, 32), film),
        *_pair("AutoencoderKLQwenImage", qwen, (1, 3, 5, 32, 32), film),
        *_pair("AutoencoderKLCogVideoX", cog, (1, 3, 5, 32, 32), (1, 4, 2, 16, 16)),
        *_pair("AutoencoderKLLTXVideo", ltx, (1, 3, 9, 32, 32), (1, 8, 2, 4, 4)),
        _one("AutoencoderKLMochi, decode", lambda: Method(mochi(), "decode", return_dict=False), film),
        _one(
            "AutoencoderKLHunyuanVideo, decode",
            lambda: Method(hunyuan(), "decode", return_dict=False),
            film,
        ),
        _one("AutoencoderKLAllegro, decoder", lambda: allegro().decoder, (1, 4, 3, 8, 8)),
        _one("AutoencoderKLMagvit, decode", lambda: Method(magvit(), "decode", return_dict=False), film),
    ]


def _unets() -> list[Entry]:
    import diffusers

    plain: dict[str, Any] = {"block_out_channels": WIDTHS, "norm_num_groups": 8, "layers_per_block": 1}
    unet = partial(
        diffusers.UNet2DModel,
        **plain,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    convolutional = partial(
        diffusers.UNet2DModel,
        **plain,
        add_attention=False,
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
    )
    conditioned: dict[str, Any] = {
        **plain,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "cross_attention_dim": 16,
        "attention_head_dim": 4,
    }
    text = partial(
        diffusers.UNet2DConditionModel, **conditioned, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")
    )
    control = partial(diffusers.ControlNetModel, **conditioned, conditioning_embedding_out_channels=(8, 8))
    films = partial(
        diffusers.UNet3DConditionModel,
        block_out_channels=(32, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=16,
        attention_head_dim=8,
    )
    signals = partial(
        diffusers.UNet1DModel,
        sample_size=256,
        in_channels=14,
        out_channels=14,
        time_embedding_type="positional",
        use_timestep_embedding=True,
        down_block_types=("DownResnetBlock1D",) * 3,
        mid_block_type="MidResTemporalBlock1D",
        up_block_types=("UpResnetBlock1D",) * 2,
        out_block_type="OutConv1DBlock",
        act_fn="swish",
        block_out_channels=(16, 32, 64),
    )
    noise, words = (2, 4, 16, 16), (2, 7, 16)
    step = {"timestep": TIME, "encoder_hidden_states": words, "return_dict": False}
    images = {"sample": (2, 3, 32, 32), "timestep": TIME}
    return [
        _one("UNet2DModel", unet, images),
        _one("UNet2DModel, no attention", convolutional, {**images, "return_dict": False}),
        _one("UNet2DConditionModel", text, {"sample": noise, **step}),
        _one("ControlNetModel", control, {"sample": noise, "controlnet_cond": (2, 3, 32, 32), **step}),
        _one("UNet3DConditionModel", films, {"sample": (2, 4, 2, 16, 16), **step}),
        _one(
            "UNet1DModel",
            signals,
            {"sample": (2, 14, 256), "timestep": TIME, "return_dict": False},
        ),
    ]
