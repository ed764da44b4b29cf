"""Data that hangs in a process of its loader."""

import threading

from torch.utils.data import DataLoader, Dataset

from nasflow.evaluator.data import DigitsRows


class Hanging(Dataset):
    """Gives samples, and waits for ever in the middle of an epoch."""

    def __init__(self, tensors, hangs):
        self.tensors, self.hangs, self.given = tensors, hangs, 0

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, index):
        self.given += 1
        if self.hangs and self.given > len(self) // 2:
            threading.Event().wait()
        return tuple(tensor[index] for tensor in self.tensors)


def digits(hangs=False):
    """Digits as rows, by one process of a loader, which may hang."""
    train, validation = DigitsRows()
    samples = Hanging(train.tensors, hangs)
    return DataLoader(samples, batch_size=256, shuffle=True, num_workers=1, persistent_workers=True), validation
