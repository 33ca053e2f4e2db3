"""The digest of a model, as in the result. Must not use the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from torch import Tensor

from bench.audit.kept_files import BUFFERS, OPTIMIZER, PARAMETERS, Name, raw


def digest(state: Mapping[Name, Tensor]) -> str:
    """Return the sha256 of parameters and buffers that the result calls `params_sha256`. Order: by type, floating-point
    types first; within a type parameters before buffers; complex numbers last."""
    hashed = hashlib.sha256()
    own = [(name, tensor) for name, tensor in state.items() if name.kind != OPTIMIZER]
    kinds = {tensor.dtype.to_real() for _, tensor in own}
    for kind in sorted(kinds, key=lambda dtype: (not dtype.is_floating_point, str(dtype))):
        members = [(name, tensor) for name, tensor in own if tensor.dtype.to_real() == kind]
        at = 0
        for which in (PARAMETERS, BUFFERS):
            for name, tensor in sorted(members, key=lambda member: member[1].is_complex()):
                if name.kind == which:
                    if tensor.is_complex() and at % 2:
                        hashed.update(bytes(kind.itemsize))
                        at += 1
                    hashed.update(raw(tensor.cpu()))
                    at += tensor.numel() * (2 if tensor.is_complex() else 1)
    return hashed.hexdigest()
