"""Traces the layers of a user's model with one sample. Must not know who draws them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddp.data.dataset import collated
from ddp.data.fingerprint import undisturbed
from ddp.graph.scatter import leaves
from ddp.graph.structure import describe, digest
from ddp.monitor.harness import layers
from ddp.replica.scalars import Scalars
from ddp.trainer.mistakes import make_model
from ddp.trainer.task import Parts


def sketch(parts: Parts, metric: str, model: nn.Module | None = None) -> dict[str, Any] | None:
    """Return the layers of `model` (None: make it) and their structural hash; None if the model cannot be traced.
    Leaves random generators unchanged."""
    with undisturbed():
        try:
            model = (make_model(parts.model_factory) if model is None else model).eval()
            batch = collated(parts.dataset, parts.collate_fn).batch(torch.zeros(1, dtype=torch.int64))
            with Scalars():
                graph = layers(model, lambda: parts.train_step(model, batch))
            known = {"structural_hash": digest(describe(model))}
        except Exception:  # a user's code may raise anything; a missing picture must not end the run
            return None
    inputs = leaves(batch)
    return {"metric": metric, "input": list(inputs[0].shape[1:]) if inputs else [], **known, **graph}
