"""Models of torchvision: classification, segmentation, video, optical flow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from benchmarks.models_survey.entry import Entry

IMAGES, SMALL, SCENES, FILMS = (4, 3, 64, 64), (4, 3, 32, 32), (2, 3, 64, 64), (2, 3, 8, 32, 32)
# built as they are, with ten classes
AS_THEY_ARE = {
    "resnet18": SMALL,
    "densenet121": SMALL,
    "efficientnet_b0": SMALL,
    "efficientnet_v2_s": SMALL,
    "mobilenet_v2": SMALL,
    "mobilenet_v3_small": SMALL,
    "mobilenet_v3_large": SMALL,
    "shufflenet_v2_x0_5": SMALL,
    "squeezenet1_0": IMAGES,
    "squeezenet1_1": IMAGES,
    "regnet_x_400mf": SMALL,
    "regnet_y_400mf": SMALL,
    "convnext_tiny": SMALL,
    "mnasnet0_5": SMALL,
}


def entries() -> list[Entry]:
    """All models, shallow where the library has an argument for it."""
    from torchvision import models
    from torchvision.models import segmentation, video

    found = [_one(n, partial(getattr(models, n), num_classes=10), s) for n, s in AS_THEY_ARE.items()]
    found += _classifiers(models)
    kept: Any = {"weights": None, "weights_backbone": None, "num_classes": 5}
    for name in ("fcn_resnet50", "deeplabv3_resnet50"):
        for aux in (False, True):
            words = f"{name}, auxiliary output" if aux else name
            found.append(_one(words, partial(getattr(segmentation, name), aux_loss=aux, **kept), SCENES))
    for name in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large"):
        found.append(_one(name, partial(getattr(segmentation, name), **kept), SCENES))
    for name in ("r3d_18", "mc3_18", "r2plus1d_18"):
        found.append(_one(name, partial(getattr(video, name), num_classes=10), FILMS))
    found.append(_one("s3d", partial(video.s3d, num_classes=10), (1, 3, 16, 224, 224)))
    found.append(_one("mvit_v1_b, 2 blocks", _mvit, (1, 3, 4, 32, 32)))
    found.append(_one("swin3d_t, 1 block a stage", _swin3d, (1, 3, 4, 32, 32)))
    flow = {"image1": (1, 3, 128, 128), "image2": (1, 3, 128, 128)}
    small = partial(models.optical_flow.raft_small)
    found.append(_one("raft_small", small, {**flow, "num_flow_updates": 2}))
    return found


def _one(name: str, make: Callable[[], nn.Module], input: Any) -> Entry:
    return Entry("torchvision", name, make, input)


def _classifiers(models: Any) -> list[Entry]:
    """Models with a depth or a width of our choice."""
    resnet, ten = models.resnet, {"num_classes": 10}
    once = partial(resnet.ResNet, resnet.Bottleneck, [1, 1, 1, 1], **ten)
    swin, vit = models.swin_transformer, models.VisionTransformer
    windows = {"patch_size": [4, 4], "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4]}
    v1 = partial(swin.SwinTransformer, window_size=[4, 4], **windows, **ten)
    v2 = partial(
        v1, block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2, window_size=[4, 4]
    )
    layers = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    vgg = models.vgg
    return [
        _one("googlenet", partial(models.googlenet, init_weights=False, aux_logits=False, **ten), IMAGES),
        _one(
            "googlenet, auxiliary outputs",
            partial(models.googlenet, init_weights=False, **ten),
            (4, 3, 224, 224),
        ),
        _one("resnet50, 1 block a stage", once, IMAGES),
        _one("resnext50_32x4d, 1 block a stage", partial(once, groups=32, width_per_group=4), IMAGES),
        _one("wide_resnet50_2, 1 block a stage", partial(once, width_per_group=128), SMALL),
        _one("vgg11, features", lambda: vgg.vgg11().features, SMALL),
        _one("vgg13_bn, features", lambda: vgg.vgg13_bn().features, SMALL),
        _one("alexnet, features", lambda: models.alexnet().features, IMAGES),
        _one(
            "inception_v3",
            partial(models.inception_v3, init_weights=False, aux_logits=False, **ten),
            (2, 3, 96, 96),
        ),
        _one(
            "inception_v3, auxiliary output",
            partial(models.inception_v3, init_weights=False, **ten),
            (2, 3, 299, 299),
        ),
        _one("swin_t, 2 stages", v1, SMALL),
        _one("swin_v2_t, 2 stages", v2, SMALL),
        _one("vit, 2 layers", partial(vit, image_size=32, patch_size=8, **layers, **ten), SMALL),
        _one("maxvit, 2 stages", _maxvit, IMAGES),
    ]


def _maxvit() -> nn.Module:
    from torchvision.models.maxvit import MaxVit

    sizes: Any = {"block_channels": [16, 32], "block_layers": [1, 1], "partition_size": 4}
    return MaxVit((64, 64), 16, head_dim=8, stochastic_depth_prob=0.0, **sizes, num_classes=10)


def _mvit() -> nn.Module:
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    pool = {"kernel_q": [3, 3, 3], "kernel_kv": [3, 3, 3], "stride_q": [1, 1, 1], "stride_kv": [1, 2, 2]}
    settings = [MSBlockConfig(1, 16, 16, **pool), MSBlockConfig(2, 16, 32, **pool)]
    return MViT(
        (32, 32), 4, settings, residual_pool=False, residual_with_cls_embed=True, rel_pos_embed=False,
        proj_after_attn=False, num_classes=10,
    )  # fmt: skip


def _swin3d() -> nn.Module:
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    return SwinTransformer3d([2, 4, 4], 24, [1, 1], [2, 4], [2, 4, 4], num_classes=10)
