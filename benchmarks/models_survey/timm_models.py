"""Models of timm: the smallest of each family with convolutions."""

from __future__ import annotations

from functools import partial

from benchmarks.models_survey.entry import Entry

SMALL, IMAGES = (4, 3, 32, 32), (4, 3, 64, 64)
NAMES = {
    "resnet10t": SMALL,
    "resnet26d": SMALL,
    "seresnext26t_32x4d": SMALL,
    "resnetblur18": SMALL,
    "resnetv2_18": SMALL,
    "resnext26ts": SMALL,
    "eca_resnext26ts": SMALL,
    "gcresnext26ts": SMALL,
    "lambda_resnet26t": IMAGES,
    "halonet26t": (2, 3, 256, 256),
    "resnest14d": SMALL,
    "skresnet18": SMALL,
    "res2net50_48w_2s": SMALL,
    "hrnet_w18_small": IMAGES,
    "dla46_c": IMAGES,
    "dpn48b": SMALL,
    "densenet121": SMALL,
    "ese_vovnet19b_slim_dw": SMALL,
    "cspresnet50": SMALL,
    "darknet17": SMALL,
    "xception41": SMALL,
    "inception_v4": (2, 3, 96, 96),
    "legacy_xception": IMAGES,
    "inception_next_atto": IMAGES,
    "selecsls42": IMAGES,
    "rexnet_100": SMALL,
    "efficientnet_lite0": SMALL,
    "tf_efficientnet_lite0": SMALL,
    "mixnet_s": SMALL,
    "tf_mixnet_s": SMALL,
    "mnasnet_small": SMALL,
    "spnasnet_100": SMALL,
    "semnasnet_075": SMALL,
    "fbnetc_100": SMALL,
    "hardcorenas_a": SMALL,
    "lcnet_035": SMALL,
    "tinynet_e": SMALL,
    "mobilenetv3_small_050": SMALL,
    "tf_mobilenetv3_small_minimal_100": SMALL,
    "mobilenetv4_conv_small_035": SMALL,
    "ghostnet_050": SMALL,
    "ghostnetv2_100": IMAGES,
    "repghostnet_050": SMALL,
    "regnetx_002": SMALL,
    "regnety_002": SMALL,
    "regnetz_005": SMALL,
    "nf_resnet26": (2, 3, 128, 128),
    "nf_regnet_b0": (2, 3, 128, 128),
    "eca_nfnet_l0": (2, 3, 128, 128),
    "repvgg_a0": SMALL,
    "mobileone_s0": SMALL,
    "convnext_atto": IMAGES,
    "convnextv2_atto": IMAGES,
    "convmixer_1024_20_ks9_p14": (2, 3, 56, 56),
    "fastvit_t8": IMAGES,
    "repvit_m0_9": IMAGES,
    "edgenext_xx_small": IMAGES,
    "mobilevit_xxs": IMAGES,
    "efficientformer_l1": (2, 3, 224, 224),
    "poolformer_s12": IMAGES,
    "fasternet_t0": SMALL,
    "starnet_s1": SMALL,
    "hgnetv2_b0": SMALL,
    "mambaout_femto": IMAGES,
    "pvt_v2_b0": IMAGES,
    "visformer_tiny": (2, 3, 224, 224),
    "levit_conv_128s": (2, 3, 224, 224),
    "rdnet_tiny": IMAGES,
    "shvit_s1": IMAGES,
}


def entries() -> list[Entry]:
    """All models that this version of the library has."""
    import timm

    known = set(timm.list_models())
    return [
        Entry("timm", name, partial(timm.create_model, name, num_classes=10), shape)
        for name, shape in NAMES.items()
        if name in known
    ]
