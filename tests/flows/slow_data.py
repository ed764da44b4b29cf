"""Data that hangs in a process of its loader."""

import threading

from torch.utils.data import DataLoader, Dataset

from nasflow.evaluator.data import DigitsRows


class Hanging(Dataset):
    """Gives the samples of another data set, and waits for ever for the first of the second epoch."""

    def __init__(self, samples):
        self.samples, self.given = samples, 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.given += 1
        if self.given > len(self):
            threading.Event().wait()
        return self.samples[index]


class Digits:
    """Digits as rows, by one process of a loader, which may hang."""

    def __init__(self, hangs=False):
        self.data, self.hangs = DigitsRows(), hangs

    def train_dataloader(self):
        loader = self.data.train_dataloader()
        samples = Hanging(loader.dataset) if self.hangs else loader.dataset
        return DataLoader(samples, batch_size=256, shuffle=True, num_workers=1, persistent_workers=True)

    def val_dataloader(self):
        return self.data.val_dataloader()
