"""Reductions of tensors in one memory, in a fixed order. Knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ddp.comm.transports.base import MAX, MEAN, MIN, PROD, SUM

TYPES = {
    each: code for code, each in enumerate((torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64))
}
OPS = {SUM: 0, MAX: 1, MEAN: 2, MIN: 3, PROD: 4}
Combine = Callable[..., Tensor]
COMBINE: dict[str, Combine] = {SUM: torch.add, MEAN: torch.add, PROD: torch.mul}
COMBINE |= {MAX: torch.maximum, MIN: torch.minimum}


def about(flat: Tensor, op: str) -> int:
    """Encode size, type and operation of a reduction in one integer."""
    return flat.numel() << 8 | TYPES.get(flat.dtype, len(TYPES)) << 3 | OPS[op]


def words(what: int) -> str:
    """Describe an integer of `about` in words."""
    kind = next((str(dtype)[6:] for dtype, code in TYPES.items() if code == what >> 3 & 31), "another type")
    op = next(name for name, code in OPS.items() if code == what & 7)
    return f"{what >> 8} x {kind} to their {op}"


def reduction(parts: list[Tensor], op: str, out: Tensor) -> None:
    """Reduce `parts` in order, into `out`. Half precision is summed and multiplied in float32. A mean of 3 or of more than
    4 parts is computed in float64, so that equal values keep their bits; with 2 and 4 parts they do anyway."""
    count = len(parts)
    if count == 1:
        out.copy_(parts[0])
        return
    half = out.dtype in (torch.bfloat16, torch.float16)
    if op not in (MAX, MIN) and (half or (op == MEAN and count not in (2, 4))):
        wide = torch.float32 if half else torch.promote_types(out.dtype, torch.float64)
        total = parts[0].to(wide, copy=True)  # other ranks read the original
        for part in parts[1:]:
            COMBINE[op](total, part, out=total)
        out.copy_(total.div_(count) if op == MEAN else total)
        return
    combine = COMBINE[op]
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)
    if op == MEAN:
        out.mul_(1.0 / count)
