"""What a run of a model may change in its process, as it was before."""

from __future__ import annotations

import gc
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from synth.runtime.kernels.autocast import no_autocast


@contextmanager
def untouched(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Run models in here; then generators and settings of the process are as before.

    In here gradients are recorded, nothing is cast, warnings are not shown, and the
    generators of torch, numpy and Python begin with `seed`.
    """
    numpy: Any = sys.modules.get("numpy")
    drawn = random.getstate()
    drawn_by_numpy = None if numpy is None else numpy.random.get_state()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    alike = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    anomaly = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    devices = [] if device.type == "cpu" else [device]
    try:
        with (
            torch.random.fork_rng(devices, device_type=device.type),
            torch.inference_mode(False),
            torch.enable_grad(),
            no_autocast(device),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            random.seed(seed)
            if numpy is not None:
                numpy.random.seed(seed)
            yield
    finally:
        random.setstate(drawn)
        if numpy is not None:
            numpy.random.set_state(drawn_by_numpy)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(alike, warn_only=warned)
        torch.autograd.set_detect_anomaly(*anomaly)


@contextmanager
def collected() -> Iterator[None]:
    """At the end, free what was made in here and refers to itself, as a network does.

    What was there before is not looked at: that takes 0.3 s once torch is imported.
    """
    own = not gc.get_freeze_count()
    if own:  # else the user has put it aside
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if own:
            gc.unfreeze()
