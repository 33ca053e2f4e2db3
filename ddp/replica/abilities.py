"""Checks whether a device supports the optional features of a step: half precision and `torch.compile`."""

from __future__ import annotations

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch

from ddp.core.settings.steps import StepSettings

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision -> dtype of autocast in forward and backward passes; parameters keep their own dtype."""


def lacks_half(precision: str, device: torch.device) -> str | None:
    """Return why passes in `bf16` or `fp16` do not work on `device`, or None if they work."""
    if device.type == "cuda" and precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return f"{torch.cuda.get_device_name(device)} has no bfloat16"
    layer = torch.nn.Linear(2, 2, device=device)
    try:
        with torch.random.fork_rng(devices=[]), torch.autocast(device.type, HALF[precision]):
            layer(torch.ones(2, 2, device=device)).float().sum().backward()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None


def lacks_compiler(device: torch.device) -> str | None:
    """Return why `torch.compile` cannot generate code for `device`, or None if it can."""
    if device.type == "cuda":
        return None if find_spec("triton") else "no package triton"
    names = (os.environ["CXX"],) if "CXX" in os.environ else ("g++", "clang++")
    if not any(map(shutil.which, names)):
        return f"no C++ compiler ({' or '.join(names)})"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return None if header.is_file() else f"no {header}, which packages such as python3-dev have"


def check_abilities(step: StepSettings, device: torch.device) -> None:
    """Raise ValueError if `device` does not support what `step` asks for."""
    if step.half and (why := lacks_half(step.precision, device)):
        raise ValueError(f"precision={step.precision} does not work on {device}: {why}; leave it out")
    if step.compile and (why := lacks_compiler(device)):
        raise ValueError(f"compile=true does not work on {device}: {why}; leave it out")
