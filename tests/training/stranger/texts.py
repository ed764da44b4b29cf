"""Texts of unlike lengths, padded batch by batch, and models that read them."""

from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from nasflow.space.pick import Pick

WORDS = 23


class Texts(Dataset[Any]):
    """Of 3 to 40 words each; the class is the remainder of their sum."""

    def __init__(self, size: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 40, (size,), generator=generator)
        self.texts = [torch.randint(1, WORDS, (int(length),), generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> Any:
        words = self.texts[number]
        return words, int(words.sum()) % 3


def padded(samples: list[Any]) -> Any:
    texts, labels = zip(*samples, strict=True)
    return pad_sequence(list(texts), batch_first=True), torch.tensor(labels)


def batches(batch_size: int = 8, size: int = 96) -> Any:
    """Nearly each batch has another length."""
    return (
        DataLoader(Texts(size, 1), batch_size, shuffle=True, collate_fn=padded),
        DataLoader(Texts(40, 2), batch_size, collate_fn=padded),
    )


class Masked(nn.Module):
    """The mean over words that are no padding."""

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        there = (words > 0).unsqueeze(-1).to(x.dtype)
        return (x * there).sum(1) / there.sum(1).clamp(min=1)


class Placed(nn.Module):
    """Adds a table of places, as far as the text goes."""

    def __init__(self, width: int):
        super().__init__()
        self.places = nn.Parameter(0.1 * torch.randn(64, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.places[: x.size(1)]


class Attending(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.places, self.attention = Placed(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.places(x)
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


class Heads(nn.Module):
    """Attention written out, with views by the sizes of its input."""

    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, e = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, 2, e // 2).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).reshape(b, t, e))


class Convolving(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(width, width, 3, padding=1, bias=False), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.transpose(1, 2)).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.GRU(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)[0]


BODIES = {
    "plain": lambda width: nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)),
    "attending": Attending,
    "heads": Heads,
    "convolving": Convolving,
    "recurrent": Recurrent,
}


class Reader(nn.Module):
    def __init__(self, body: str, width: int):
        super().__init__()
        self.table, self.body = nn.Embedding(WORDS, width, padding_idx=0), BODIES[body](width)
        self.pool, self.head = Masked(), nn.Linear(width, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.body(self.table(words)), words))


def reader(pick: Pick) -> nn.Module:
    return Reader(pick("body", list(BODIES)), pick("width", [4, 8]))
