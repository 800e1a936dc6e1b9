"""A torchvision built for CUDA lacks two operators on a CPU torch; deepinv imports it. Declare them first."""

from __future__ import annotations

import contextlib
import importlib.util

import torch

if importlib.util.find_spec("deepinv") is not None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # a complete torchvision has them
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
