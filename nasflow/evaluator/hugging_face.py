"""Data sets whose samples are dicts, such as those of Hugging Face's `datasets`, as an evaluator's data."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from nasflow.errors import ConfigError

Pair = tuple[torch.Tensor, torch.Tensor]


class Columns(Dataset[Pair]):
    """Gives samples that are dicts as pairs (features, label) of tensors.

    Images of bytes, as Hugging Face's `with_format("torch")` gives them, become numbers from 0 to 1.

    Args:
        rows: what has a length, and gives a dict by number: a `datasets.Dataset`, or a list.
        features: the name of one column, or of several with a number each, which become one row `[F]`.
        label: the name of the column with the targets.

    Raises:
        KeyError: a sample has no such column.
    """

    def __init__(self, rows: Any, features: str | Sequence[str], label: str):
        self._rows, self._features, self._label = rows, features, label

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._rows)

    def __getitem__(self, number: int) -> Pair:
        return self._pair(self._rows[number])

    def __getitems__(self, numbers: list[int]) -> list[Pair]:
        """Return the samples of a batch, which Hugging Face reads at once."""
        read = getattr(self._rows, "__getitems__", None)
        return [self._pair(row) for row in (read(numbers) if read else map(self._rows.__getitem__, numbers))]

    @property
    def targets(self) -> torch.Tensor:
        """The labels of all samples `[N, ...]`, by which folds are stratified."""
        if hasattr(self._rows, "select_columns"):  # reads no other column, such as images
            return torch.as_tensor(self._rows.select_columns([self._label])[:][self._label])
        return torch.stack([torch.as_tensor(row[self._label]) for row in self._rows])

    def _pair(self, row: dict[str, Any]) -> Pair:
        if isinstance(self._features, str):
            x = torch.as_tensor(row[self._features])
            x = x / 255 if x.dtype == torch.uint8 else x
        else:
            x = torch.stack([torch.as_tensor(row[name], dtype=torch.float32) for name in self._features])
        return x, torch.as_tensor(row[self._label])


def HuggingFace(  # noqa: N802
    path: str,
    features: str | list[str],
    label: str,
    *,
    batch_size: int = 64,
    train: str = "train",
    validation: str | None = "validation",
    **options: Any,
) -> tuple[DataLoader[Pair], DataLoader[Pair]] | DataLoader[Pair]:
    """Loaders of two splits of a data set that `datasets.load_dataset` loads, or of one if `validation` is None.

    Args:
        path: a name on the hub, a folder, or a format such as "csv" or "parquet".
        features: see `Columns`.
        label: see `Columns`.
        batch_size: samples of a batch.
        train: the split to train on.
        validation: the split to validate on.
        options: of `load_dataset`, such as `name`, `data_files` or `revision`.

    Raises:
        ConfigError: `datasets` is not installed, or there is no such split or column.
    """
    try:
        from datasets import load_dataset  # noqa: PLC0415 - optional
    except ImportError as error:
        raise ConfigError(f"evaluator.data: HuggingFace needs the package datasets ({error}); install it") from None
    splits: Any = load_dataset(path, **options)

    def loader(split: str, key: str, shuffle: bool) -> DataLoader[Pair]:
        if split not in splits:
            raise _refused(key, f"{path} has no split '{split}'; it has {', '.join(map(str, splits))}")
        rows = splits[split]
        for column in [features] if isinstance(features, str) else features:
            _check_column(path, rows, column, "features")
        _check_column(path, rows, label, "label")
        return DataLoader(Columns(rows.with_format("torch"), features, label), batch_size, shuffle=shuffle)

    training = loader(train, "train", shuffle=True)
    return training if validation is None else (training, loader(validation, "validation", shuffle=False))


def _check_column(path: str, rows: Any, column: str, key: str) -> None:
    if column not in rows.column_names:
        raise _refused(key, f"{path} has no column '{column}'; it has {', '.join(rows.column_names)}")


def _refused(key: str, reason: str) -> ConfigError:
    return ConfigError(f"evaluator.data.params.{key}: {reason}")
