"""Models of transformers with convolutions, narrow: images, detection, segmentation, speech."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.models_survey.entry import Entry

IMAGE, SIGNAL = (2, 3, 32, 32), (2, 400)
VIT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
PATCHES: dict[str, Any] = {**VIT, "image_size": 32, "patch_size": 8}
SPEECH: dict[str, Any] = {
    **VIT,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
}
HIERARCHY: dict[str, Any] = {"depths": [1, 1], "embed_dim": 8, "num_heads": [2, 2], "image_size": 32}


def entries() -> list[Entry]:
    """All models."""
    ids = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 3, 2, 1, 0, 0]])
    seen = torch.ones(2, 400, dtype=torch.long)
    seen[1, 300:] = 0
    shown = torch.ones(2, 32, 32, dtype=torch.long)
    shown[1, 24:] = 0
    words = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    stages: dict[str, Any] = {"depths": [1, 1], "hidden_sizes": [8, 16]}
    levels: dict[str, Any] = {
        "num_encoder_blocks": 2,
        "hidden_sizes": [8, 16],
        "depths": [1, 1],
        "sr_ratios": [2, 1],
    }
    heads: dict[str, Any] = {"patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2]}
    made: list[tuple[str, Any, Any]] = [
        ("ViTForImageClassification", ("ViT", PATCHES), IMAGE),
        ("ViTForMaskedImageModeling", ("ViT", {**PATCHES, "encoder_stride": 8}), IMAGE),
        ("BeitForImageClassification", ("Beit", {**PATCHES, "use_relative_position_bias": True}), IMAGE),
        (
            "SegformerForSemanticSegmentation",
            ("Segformer", {**levels, **heads, "mlp_ratios": [2, 2], "decoder_hidden_size": 8}),
            IMAGE,
        ),
        ("SwinForImageClassification", ("Swin", {**HIERARCHY, "window_size": 4, "patch_size": 2}), IMAGE),
        (
            "Swin2SRForImageSuperResolution",
            ("Swin2SR", {**HIERARCHY, "window_size": 4, "patch_size": 1, "upscale": 2}),
            IMAGE,
        ),
        (
            "MobileViTV2ForImageClassification",
            ("MobileViTV2", {"image_size": 64, "width_multiplier": 0.25}),
            (2, 3, 64, 64),
        ),
        (  # it takes the rate of stage n from the n-th layer of the stage, so that stage needs as many
            "CvtForImageClassification",
            ("Cvt", {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]}),
            IMAGE,
        ),
        ("ResNetForImageClassification", ("ResNet", {**stages, "embedding_size": 8}), IMAGE),
        (
            "RegNetForImageClassification",
            ("RegNet", {**stages, "embedding_size": 8, "groups_width": 4}),
            IMAGE,
        ),
        ("ConvNextV2ForImageClassification", ("ConvNextV2", {"num_stages": 2, **stages}), IMAGE),
        (
            "FocalNetForImageClassification",
            (
                "FocalNet",
                {
                    "image_size": 32,
                    "embed_dim": 8,
                    "depths": [1, 1],
                    "focal_levels": [2, 2],
                    "focal_windows": [3, 3],
                },
            ),
            IMAGE,
        ),
        (
            "DPTForDepthEstimation",
            (
                "DPT",
                {
                    **PATCHES,
                    "num_hidden_layers": 4,
                    "backbone_out_indices": [0, 1, 2, 3],
                    "neck_hidden_sizes": [8, 8, 8, 8],
                    "fusion_hidden_size": 8,
                },
            ),
            IMAGE,
        ),
        (
            "GLPNForDepthEstimation",
            ("GLPN", {**levels, **heads, "mlp_ratios": [2, 2], "decoder_hidden_size": 8}),
            IMAGE,
        ),
        (
            "YolosForObjectDetection",
            ("Yolos", {**PATCHES, "image_size": [32, 32], "num_detection_tokens": 4}),
            IMAGE,
        ),
        ("DetrForObjectDetection", ("Detr", _detr()), {"pixel_values": IMAGE, "pixel_mask": shown}),
        (
            "PerceiverForImageClassificationConvProcessing",
            (
                "Perceiver",
                {
                    "num_latents": 6,
                    "d_latents": 16,
                    "d_model": 322,
                    "num_self_attends_per_block": 1,
                    "num_self_attention_heads": 2,
                    "num_cross_attention_heads": 1,
                },
            ),
            {"pixel_values": IMAGE},
        ),
        (
            "Blip2QFormerModel",
            ("Blip2QFormer", {**VIT, "encoder_hidden_size": 12}),
            {"query_embeds": (2, 3, 16), "encoder_hidden_states": (2, 9, 12)},
        ),
        ("CLIPVisionModelWithProjection", ("CLIPVision", {**PATCHES, "projection_dim": 8}), IMAGE),
        (
            "CLIPModel",
            (
                "CLIP",
                {
                    "text_config": {**VIT, "vocab_size": 20, "max_position_embeddings": 8, "eos_token_id": 8},
                    "vision_config": PATCHES,
                    "projection_dim": 8,
                },
            ),
            {**words, "pixel_values": IMAGE},
        ),
        ("Wav2Vec2Model", ("Wav2Vec2", SPEECH), SIGNAL),
        ("Wav2Vec2Model, mask", ("Wav2Vec2", SPEECH), {"input_values": SIGNAL, "attention_mask": seen}),
        (
            "HubertModel",
            ("Hubert", {**SPEECH, "feat_extract_norm": "layer", "do_stable_layer_norm": True}),
            SIGNAL,
        ),
        ("WavLMModel", ("WavLM", SPEECH), SIGNAL),
        (
            "ASTForAudioClassification",
            (
                "AST",
                {
                    **VIT,
                    "patch_size": 8,
                    "frequency_stride": 4,
                    "time_stride": 4,
                    "max_length": 24,
                    "num_mel_bins": 16,
                },
            ),
            (2, 24, 16),
        ),
        (
            "SqueezeBertModel",
            (
                "SqueezeBert",
                {**VIT, "vocab_size": 20, "embedding_size": 16, "q_groups": 2, "k_groups": 2, "v_groups": 2},
            ),
            words,
        ),
        (
            "ConvBertModel",
            (
                "ConvBert",
                {**VIT, "vocab_size": 20, "embedding_size": 16, "conv_kernel_size": 3, "head_ratio": 1},
            ),
            words,
        ),
        (
            "TimesformerForVideoClassification",
            ("Timesformer", {**PATCHES, "num_frames": 2}),
            (1, 2, 3, 32, 32),
        ),
        ("UperNetForSemanticSegmentation", ("UperNet", _uper()), IMAGE),
        (
            "MgpstrForSceneTextRecognition",
            (
                "Mgpstr",
                {
                    **VIT,
                    "image_size": [16, 32],
                    "patch_size": 4,
                    "max_token_length": 4,
                    "num_character_labels": 8,
                    "num_bpe_labels": 9,
                    "num_wordpiece_labels": 10,
                },
            ),
            (2, 3, 16, 32),
        ),
        (
            "PatchTSMixerForPrediction",
            (
                "PatchTSMixer",
                {
                    "context_length": 32,
                    "patch_length": 8,
                    "num_input_channels": 2,
                    "patch_stride": 8,
                    "d_model": 8,
                    "num_layers": 1,
                    "prediction_length": 4,
                },
            ),
            (2, 32, 2),
        ),
        (
            "EncodecModel",
            (
                "Encodec",
                {
                    "num_filters": 4,
                    "upsampling_ratios": [4, 2],
                    "hidden_size": 8,
                    "num_lstm_layers": 1,
                    "codebook_size": 8,
                    "codebook_dim": 8,
                    "target_bandwidths": [1.5],
                },
            ),
            (1, 1, 320),
        ),
    ]
    return [Entry("transformers", name, _maker(name, *how), given) for name, how, given in made]


def _maker(name: str, kind: str, options: dict[str, Any]) -> Callable[[], nn.Module]:
    """What makes a model of a class. kind: of its configuration."""

    def make() -> nn.Module:
        import transformers

        made = dict(options)
        if isinstance(made.get("backbone_config"), tuple):
            backbone, given = made["backbone_config"]
            made["backbone_config"] = getattr(transformers, f"{backbone}Config")(**given)
        config = getattr(transformers, f"{kind}Config")(**made)
        model: nn.Module = getattr(transformers, name.split(",")[0])(config)
        return model

    return make


def _detr() -> dict[str, Any]:
    backbone = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "out_features": ["stage2"]}
    sizes = {
        "d_model": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    }
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 4}
    return {
        **sizes,
        **heads,
        "use_timm_backbone": False,
        "backbone": None,
        "backbone_config": ("ResNet", backbone),
    }


def _uper() -> dict[str, Any]:
    stages = {
        "num_stages": 2,
        "depths": [1, 1],
        "hidden_sizes": [8, 16],
        "out_features": ["stage1", "stage2"],
    }
    heads = {"hidden_size": 8, "pool_scales": [1, 2], "use_auxiliary_head": False, "num_labels": 4}
    return {**heads, "backbone": None, "backbone_config": ("ConvNext", stages)}
