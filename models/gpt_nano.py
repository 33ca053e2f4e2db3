"""`gpt_nano`: a transformer of 4 layers that continues text, character by character.

The published set-up gives the sizes, dropout, learning rate and schedule. Everything else is as in GPT-2: norms before
attention and the linear layers, learned positions, initial values. Deviations from GPT-2: characters instead of byte pairs;
the embedding is not shared with the last layer; no weight decay.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.attention import Layer, initialise
from bench.models.data import DataOptions, DataSet
from bench.models.parts import language
from bench.models.setup import Recipe, Setup

LAYERS, HEADS, WIDTH, HIDDEN, DROPOUT = 4, 4, 128, 512, 0.1


class GPT(nn.Module):
    """Tokens [n, t] -> logits of the following tokens, [n, t, classes]; t is at most the length of the data's pieces.

    834,304 parameters for 96 characters and pieces of 128."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(data.classes, WIDTH), nn.Embedding(data.shape[0], WIDTH)
        self.layers = nn.Sequential(*(Layer(WIDTH, HEADS, HIDDEN, DROPOUT, causal=True) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, data.classes, bias=False)
        initialise(self, LAYERS)

    def forward(self, tokens: Tensor) -> Tensor:
        # Call the module instead of reading `places.weight`: sharding engines gather weights when a module is called.
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        out: Tensor = self.head(self.norm(self.layers(F.dropout(x, DROPOUT, self.training))))
        return out


SETUP = Setup(
    summary="a transformer of 4 layers that continues text by characters",
    citation="Radford et al., Language Models are Unsupervised Multitask Learners, OpenAI 2019",
    published="no value; held-out cross-entropy of 1.5 to 2.0 expected on Shakespeare after 50 epochs (Adam 3e-4, batch 64)",
    metric="cross-entropy",
    higher_is_better=False,
    recipes={
        "quick": Recipe(
            "toy_language", 3, 8, 2e-3, 0.82, "warm_up_20", data_options=DataOptions(seq_len=32, samples=3072)
        ),
        "published": Recipe("shakespeare", 50, 64, 3e-4, 1.8, "warm_up_20"),
    },
    task=partial(language, GPT, torch.optim.Adam),
)
