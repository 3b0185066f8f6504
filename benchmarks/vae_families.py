"""Autoencoders of diffusers in small form, on ranks beside one process.

    torchrun --nproc-per-node=4 -m benchmarks.vae_families [NAME ...] [--output FILE]

Each has random weights in float64. A pipeline's calls are compared with one process: `decode` of latents,
of two in bfloat16, `encode`, and `forward`. These columns have the largest difference, relative to the
largest word. "words" are those that the busiest rank receives in a `decode`, without the whole output that
each rank is given. "of the sample" is their share of the words of the output. "bytes" are what that rank
allocates at most in a `decode`, the whole output among them, beside one process.
"""

from __future__ import annotations

import argparse
import copy
import math
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import torch
import torch.distributed as dist

import synth
from synth.runtime.grid.allocation_counter import allocated

BLOCKS = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
IMAGE = {**BLOCKS, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
PLAIN = {"use_quant_conv": False, "use_post_quant_conv": False}
FILM = {
    "block_out_channels": (8, 8, 16, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "latent_channels": 4,
}
CAUSAL = {"base_dim": 8, "z_dim": 4, "num_res_blocks": 1, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
WAN22 = {
    "is_residual": True,
    "in_channels": 12,
    "out_channels": 12,
    "patch_size": 2,
    "scale_factor_spatial": 4,
}
LTX = {"block_out_channels": (8, 8, 16, 16), "decoder_block_out_channels": (8, 8, 16, 16), "patch_size": 2}
MOCHI = {"encoder_block_out_channels": (32, 32, 64, 64), "decoder_block_out_channels": (64, 64, 64, 64)}
DC = {
    "attention_head_dim": 8,
    "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
    "encoder_block_out_channels": (16, 32),
    "decoder_block_out_channels": (16, 32),
    "encoder_layers_per_block": (1, 1),
    "decoder_layers_per_block": (1, 1),
    "encoder_qkv_multiscales": ((), (5,)),
    "decoder_qkv_multiscales": ((), (5,)),
}
HUNYUAN15 = {"spatial_compression_ratio": 2, "temporal_compression_ratio": 2, "latent_channels": 8}
Make = Callable[[], Any]
# family -> its class of diffusers, the arguments of a small form, and the shape of a sample
FAMILIES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "SD": ("AutoencoderKL", {**IMAGE, "latent_channels": 4}, (1, 3, 64, 64)),
    "SDXL": ("AutoencoderKL", {**IMAGE, "latent_channels": 4, "force_upcast": True}, (1, 3, 64, 72)),
    "SD3": ("AutoencoderKL", {**IMAGE, **PLAIN, "latent_channels": 16}, (1, 3, 64, 64)),
    "Flux": ("AutoencoderKL", {**IMAGE, **PLAIN, "latent_channels": 16}, (1, 3, 72, 64)),
    "Flux.2": ("AutoencoderKLFlux2", {**IMAGE, "latent_channels": 8}, (1, 3, 64, 64)),
    "Qwen-Image": (
        "AutoencoderKLQwenImage",
        {**CAUSAL, "dim_mult": [1, 2], "temperal_downsample": [True]},
        (1, 3, 1, 64, 64),
    ),
    "Wan 2.1": (
        "AutoencoderKLWan",
        {**CAUSAL, "dim_mult": [1, 2], "temperal_downsample": [True]},
        (1, 3, 5, 32, 32),
    ),
    "Wan 2.2": (
        "AutoencoderKLWan",
        {**CAUSAL, **WAN22, "dim_mult": [1, 2, 2], "temperal_downsample": [True, True]},
        (1, 3, 5, 64, 64),
    ),
    "Hunyuan": ("AutoencoderKLHunyuanVideo", FILM, (1, 3, 9, 32, 32)),
    "Hunyuan 1.5": (
        "AutoencoderKLHunyuanVideo15",
        {**HUNYUAN15, "block_out_channels": (16, 32), "layers_per_block": 1},
        (1, 3, 5, 32, 32),
    ),
    "CogVideoX": ("AutoencoderKLCogVideoX", FILM, (1, 3, 9, 32, 32)),
    "LTX": (
        "AutoencoderKLLTXVideo",
        {**LTX, "layers_per_block": (1,) * 5, "decoder_layers_per_block": (1,) * 5, "latent_channels": 8},
        (1, 3, 9, 64, 64),
    ),
    "Mochi": (
        "AutoencoderKLMochi",
        {**MOCHI, "layers_per_block": (1,) * 5, "latent_channels": 4}
        | {"latents_mean": (0.0,) * 4, "latents_std": (1.0,) * 4},
        (1, 3, 6, 32, 32),
    ),
    "DC": ("AutoencoderDC", {**DC, "in_channels": 3, "latent_channels": 4}, (1, 3, 64, 64)),
}
HEAD = (
    "| family | class | sample | decode | two, bfloat16 | encode | forward | words | of the sample | bytes |"
)


class Row(NamedTuple):
    """Largest relative distances from one process; words and bytes of the busiest rank in a decode."""

    name: str
    distances: tuple[float, ...]
    words: int
    share: float  # of the words of the decoded image or film
    bytes: float  # allocated at most, of what one process allocates

    def __str__(self) -> str:
        kind, _, shape = FAMILIES[self.name]
        far = " | ".join(f"{each:.0e}" for each in self.distances)
        what = f"{self.name} | {kind} | {'x'.join(map(str, shape))}"
        return f"| {what} | {far} | {self.words:,} | {self.share:.1f} | {self.bytes:.2f} |"


def main() -> None:
    """Measure the families on the ranks of this job; the first rank writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    synth.init_process_group("gloo")
    torch.set_grad_enabled(False)
    lines = [HEAD, "|---" * HEAD.count(" | ") + "|---|"]
    for name in args.names or FAMILIES:
        lines.append(str(measured(name)))
        if dist.get_rank() == 0:
            print(lines[-1], flush=True)
    if args.output and dist.get_rank() == 0:
        title = f"# Autoencoders on {dist.get_world_size()} ranks\n\n"
        text = f"{(__doc__ or '').partition('Each has')[2]}"
        about = f"diffusers {diffusers.__version__}, torch {torch.__version__}, gloo. Each has{text}\n"
        text = "\n".join(textwrap.wrap(about, 110))
        args.output.write_text(f"{title}{text}\n\n" + "\n".join(lines) + "\n")


def measured(name: str) -> Row:
    """One family on the ranks of this job."""
    kind, options, shape = FAMILIES[name]
    torch.manual_seed(0)
    model = getattr(diffusers, kind)(**options).eval().requires_grad_(False).double()
    sample = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    latents = _latents(model.encode(sample))
    made = model.decode(latents).sample
    vae: Any = synth.parallelize_vae(copy.deepcopy(model), shape, check=False)
    vae.decode(latents)
    before = vae.received()
    out = vae.decode(latents, return_dict=False)[0]
    words = vae.received() - before
    mine = allocated(lambda: vae.decode(latents)).peak
    alone = allocated(lambda: model.decode(latents)).peak
    both = torch.cat((latents, latents.flip(0) * 0.5))
    low, low_vae = copy.deepcopy(model).bfloat16(), synth.parallelize_vae(_low(model), shape, check=False)
    given = both.bfloat16()
    distances = (
        _far(out, made),
        _far_of_two(low_vae, low, given),
        _far(_latents(vae.encode(sample)), latents),
        _far(_sample(vae(sample)), _sample(model(sample))),
    )
    most = torch.tensor([words, mine])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return Row(name, distances, int(most[0]), int(most[0]) / made.numel(), int(most[1]) / alone)


def _far_of_two(vae: Any, model: Any, given: torch.Tensor) -> float:
    """NaN for a model that cannot decode two itself."""
    try:
        wanted = model.decode(given).sample
    except RuntimeError:
        return math.nan
    return _far(vae.decode(given).sample, wanted)


def _low(model: Any) -> Any:
    return copy.deepcopy(model).bfloat16()


def _latents(encoded: Any) -> torch.Tensor:
    found: torch.Tensor = encoded.latent_dist.mode() if hasattr(encoded, "latent_dist") else encoded.latent
    return found


def _sample(made: Any) -> torch.Tensor:
    found: torch.Tensor = made[0] if isinstance(made, tuple) else made.sample
    return found


def _far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max())


if __name__ == "__main__":
    main()
