"""Devices to replicate on: which ones exist, whether they are equal, and their description in one line.

Owns queries to torch about devices. Must not know what they are used for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

GIB = 2**30


def cuda_devices() -> tuple[torch.device, ...]:
    """Return all CUDA devices that torch can use."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.device("cuda", index) for index in range(count))


def resolve(devices: Sequence[str | torch.device]) -> tuple[torch.device, ...]:
    """Return `devices` with their indices. Raises ValueError for a device that does not exist, or a CUDA device named
    twice."""
    places: list[torch.device] = []
    for device in map(torch.device, devices):
        if device.type == "cuda":
            device = torch.device("cuda", device.index or 0)
            if device not in cuda_devices():
                raise ValueError(f"{device} is not there; torch can use {list(map(str, cuda_devices())) or 'no GPU'}")
            if device in places:
                raise ValueError(f"{device} is named twice: one replica for each GPU")
        elif device.type != "cpu":
            raise ValueError(f"{device} is neither a CUDA device nor the CPU")
        places.append(device)
    return tuple(places)


def heterogeneous(devices: Sequence[torch.device]) -> bool:
    """Return whether the devices are of several kinds: a GPU and the CPU, or GPUs of different models."""
    return len({_name(device) for device in devices}) > 1


def is_heterogeneous() -> bool:
    """Return whether the CUDA devices of this machine are of different models."""
    return heterogeneous(cuda_devices())


def describe(devices: Sequence[torch.device], speeds: Sequence[float] = ()) -> str:
    """Describe devices in one line: `2 GPUs (heterogeneous) | NVIDIA A (16.0 GB) | NVIDIA B (6.0 GB)`, or `2 CPU
    replicas`."""
    gpus = [device for device in devices if device.type == "cuda"]
    if gpus:
        kind = " (heterogeneous)" if heterogeneous(devices) else ""
        memory = [torch.cuda.get_device_properties(device).total_memory / GIB for device in gpus]
        names = [f"{_name(device)} ({size:.1f} GB)" for device, size in zip(gpus, memory, strict=True)]
        line = " | ".join([f"{len(devices)} {'GPU' if len(gpus) == 1 else 'GPUs'}{kind}", *names])
    else:
        line = f"{len(devices)} CPU replica{'s' * (len(devices) > 1)}"
    return f"{line} | emulated speeds {'/'.join(f'{speed:g}' for speed in speeds)}" if speeds else line


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
