"""Data of the workloads that need other data than scikit-learn's digits as they are."""

import random
from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from nasflow.evaluator.data import Digits, DigitsRows
from nasflow.evaluator.loading.loaders import TensorLoader

DRAWN: Counter[str] = Counter()
"""How often `__getitem__` of a training set was called in this process, under `items`."""


class AugmentedImages(Dataset[tuple[torch.Tensor, int]]):
    """Generated images of 10 classes, `[3, S, S]`, cropped, flipped, jittered and normalized on access.

    Each class has its own colour; an image is that colour in noise. The augmentation draws from Python's `random`.

    Args:
        rounds: how often the colour jitter is repeated, which sets the cost of a sample.
    """

    def __init__(self, count: int, image_size: int, rounds: int, seed: int):
        self._padded, self._classes = generated_images(count, image_size, seed, border=2)
        self._size = image_size
        self._rounds = rounds

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        DRAWN["items"] += 1
        top, left = random.randrange(5), random.randrange(5)
        image = self._padded[index, :, top : top + self._size, left : left + self._size]
        if random.random() < 0.5:
            image = image[:, :, ::-1]
        for _ in range(self._rounds):
            image = image * random.uniform(0.98, 1.02) + random.uniform(-0.02, 0.02)
        return torch.from_numpy(np.ascontiguousarray(_normalized(image), dtype=np.float32)), int(self._classes[index])


@cache
def generated_images(count: int, image_size: int, seed: int, border: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` images `[count, 3, S, S]`, float32, with a border of zeros, and their classes `[count]` of 10.

    They are generated once per process and then kept in memory for all contestants.
    """
    colours = np.random.default_rng(0).random((10, 3, 1, 1), dtype=np.float32)
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, 10, count)
    noise = rng.standard_normal((count, 3, image_size, image_size), dtype=np.float32)
    images = 0.5 * colours[classes] + 0.5 * noise
    return np.pad(images, ((0, 0), (0, 0), (border, border), (border, border))), classes


def _normalized(images: np.ndarray) -> np.ndarray:
    return (images - np.float32(0.25)) / np.float32(0.5)


def data_bound(
    count: int = 5000, validation: int = 500, image_size: int = 32, batch_size: int = 64, rounds: int = 1
) -> tuple[DataLoader[tuple[torch.Tensor, int]], TensorLoader]:
    """Return W3's data: a DataLoader over `AugmentedImages`, and plain validation tensors."""
    train = AugmentedImages(count, image_size, rounds, seed=1)
    images, classes = generated_images(validation, image_size, seed=2)
    tensors = (torch.from_numpy(_normalized(images)), torch.from_numpy(classes))
    return DataLoader(train, batch_size, shuffle=True), TensorLoader(tensors, 256)


def large_digits(batch_size: int = 32, image_size: int = 32) -> tuple[TensorLoader, TensorLoader]:
    """Return W4's data: the digits upscaled to `[B, 1, 32, 32]`."""

    def upscaled(images: torch.Tensor) -> torch.Tensor:
        return F.interpolate(images, (image_size, image_size), mode="bilinear", align_corners=False)

    return _with_inputs(Digits(batch_size), upscaled, "cpu")


def resident_images(
    count: int = 8192, image_size: int = 32, batch_size: int = 128, device: str = "cuda"
) -> tuple[TensorLoader, TensorLoader]:
    """Return W6's data: generated images on the device."""
    loaders = []
    for samples, seed, shuffle in ((count, 1, True), (count // 8, 2, False)):
        images, classes = generated_images(samples, image_size, seed)
        tensors = (torch.from_numpy(_normalized(images)).to(device), torch.from_numpy(classes).to(device))
        loaders.append(TensorLoader(tensors, batch_size, shuffle))
    return loaders[0], loaders[1]


def resident_rows(batch_size: int = 64, device: str = "cuda") -> tuple[TensorLoader, TensorLoader]:
    """Return W6's data: the digits as rows `[B, 64]` on the device."""
    return _with_inputs(DigitsRows(batch_size), lambda rows: rows, device)


def _with_inputs(
    loaders: tuple[TensorLoader, TensorLoader], change: Callable[[torch.Tensor], torch.Tensor], device: str
) -> tuple[TensorLoader, TensorLoader]:
    """Return the same loaders with changed inputs, on a device."""
    for loader in loaders:
        inputs, classes = loader.tensors
        loader.tensors = (change(inputs).to(device), classes.to(device))
    return loaders
