"""`char_rnn`: two layers of LSTM that continue text, character by character.

Sizes, dropout and learning rate are those of the published set-up. Deviations from Karpathy's: RMSprop has PyTorch's
default settings (smoothing .99, not .95); gradients are not clipped unless `train.max_grad_norm` is set; pieces of text are
shuffled, so the state begins at zero in each piece. Dropout is applied between the first and the second layer.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from bench.models.data import DataOptions, DataSet
from bench.models.parts import language
from bench.models.setup import Recipe, Setup

EMBEDDING, HIDDEN, LAYERS, DROPOUT = 128, 256, 2, 0.2


class CharRNN(nn.Module):
    """Tokens [n, t] -> logits of the following tokens, [n, t, classes]. 958,560 parameters for 96 characters."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        self.tokens = nn.Embedding(data.classes, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True, dropout=DROPOUT)
        self.head = nn.Linear(HIDDEN, data.classes)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return out


SETUP = Setup(
    summary="two layers of LSTM that continue text by characters",
    citation="Karpathy, The Unreasonable Effectiveness of Recurrent Neural Networks, 2015; code: char-rnn",
    published="held-out cross-entropy 1.5 on Shakespeare in 50 epochs (RMSprop 2e-3, batch 64); measured beside it: 1.75",
    metric="cross-entropy",
    higher_is_better=False,
    recipes={
        "quick": Recipe("toy_language", 3, 8, 2e-3, 0.63, "cosine", data_options=DataOptions(seq_len=32, samples=3072)),
        "published": Recipe("shakespeare", 50, 64, 2e-3, 1.5),
    },
    task=partial(language, CharRNN, torch.optim.RMSprop),
)
