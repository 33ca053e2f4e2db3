"""`gpt_nano` without dropout, of which each rank draws its own, so that slices make the whole batch. A user's model file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bench.models.gpt_nano import GPT
from bench.models.gpt_nano import SETUP as WITH_DROPOUT
from bench.models.parts import language


class PlainGPT(GPT):
    """As `GPT`."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            layer.dropout = 0.0
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


SETUP = replace(WITH_DROPOUT, task=partial(language, PlainGPT, torch.optim.Adam))
