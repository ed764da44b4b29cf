"""Shares of batches."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from nasflow.errors import TrialError
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.wide.shares import Share, ShareLoader, part_of, share_of
from nasflow.training.wide.together import summed
from tests.training.models.spaces import Augmented, Pairs, blobs, rows


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shares_are_the_batch_and_weights_give_its_mean(size: int, ranks: int) -> None:
    values = torch.arange(size, dtype=torch.float64) ** 2
    shares = [share_of(size, rank, ranks) for rank in range(ranks)]
    own = [share for share in shares if not share.is_guest]
    assert [row for share in own for row in range(share.start, share.stop)] == list(range(size))
    assert all(share.stop > share.start for share in shares), "no rank is without a sample"
    means = [share.weight * values[share.start : share.stop].mean() for share in shares]
    assert float(sum(means)) / ranks == pytest.approx(float(values.mean()), rel=1e-14)


def test_an_empty_batch() -> None:
    with pytest.raises(TrialError, match="a batch has no samples"):
        share_of(0, 0, 2)


def test_a_part_of_whatever_a_batch_holds() -> None:
    batch = {"x": torch.arange(4), "names": ["a", "b", "c", "d"], "pair": (torch.ones(4, 2), torch.tensor(3)), "n": 7}
    part = part_of(batch, Share(1, 3, 1.0), 4)
    assert part["x"].tolist() == [1, 2]
    assert part["names"] == ["b", "c"]
    assert part["pair"][0].shape == (2, 2)
    assert (part["pair"][1].item(), part["n"]) == (3, 7)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((torch.ones(4), torch.ones(3)), r"a batch of 4 samples has a tensor \(3,\), which can't be divided"),
        ((torch.ones(4), object()), "a object in a batch can't be divided among devices; give a DataLoader"),
    ],
)
def test_what_can_not_be_divided(batch: Any, words: str) -> None:
    with pytest.raises(TrialError, match=words):
        part_of(batch, Share(0, 2, 1.0), 4)


def epochs(loader: SeededLoader) -> list[list[torch.Tensor]]:
    found = []
    for epoch in (0, 3, 0):
        loader.set_epoch(epoch)
        found.append([x for x, _ in loader])
    return found


@pytest.mark.parametrize("kind", ["tensors", "data set", pytest.param("data set with workers", marks=pytest.mark.long)])
def test_ranks_together_have_the_batches_of_one_process(kind: str) -> None:
    x, y = rows()

    def whole(limit: int | None = None) -> SeededLoader:
        if kind == "tensors":
            return SeededLoader(blobs(21)[0], 5, limit=limit)
        workers = 2 if "workers" in kind else 0
        return SeededLoader(DataLoader(Pairs(x, y), 20, shuffle=True, num_workers=workers), 5, limit=limit)

    for limit in (None, 2):
        ranks = [ShareLoader(whole(limit), rank, 3) for rank in range(3)]
        assert [len(loader) for loader in ranks] == [len(whole(limit))] * 3  # type: ignore[arg-type]
        parts = [epochs(loader) for loader in ranks]
        for epoch, batches in enumerate(epochs(whole(limit))):
            for index, batch in enumerate(batches):
                shares = [share_of(len(batch), rank, 3) for rank in range(3)]
                own = [parts[rank][epoch][index] for rank, share in enumerate(shares) if not share.is_guest]
                assert torch.equal(torch.cat(own), batch)


def test_a_rank_loads_its_own_samples_only_and_augments_them_by_itself(tmp_path: Any) -> None:
    def loader(rank: int) -> ShareLoader:
        data = Augmented(40, str(tmp_path / f"looked up by {rank}"))
        return ShareLoader(SeededLoader(DataLoader(data, batch_size=8, shuffle=True), 5), rank, 2)

    first, second = ([x for x, _ in loader(rank)] for rank in range(2))
    assert [len(x) for x in first] == [len(x) for x in second] == [4] * 5
    assert [(tmp_path / f"looked up by {rank}").stat().st_size for rank in range(2)] == [20, 20]
    assert all(torch.equal(x, y) for x, y in zip(first, [x for x, _ in loader(0)], strict=True))


def test_logs_of_all_ranks() -> None:
    parts: Any = [{"loss": [3.0, 2], "most": [1.0, 1]}, {"loss": [5.0, 3], "most": [4.0, 1], "own": [1.0, 1]}]
    assert summed(parts, {"most": "max"}) == {"loss": [8.0, 5], "most": [4.0, 1], "own": [1.0, 1]}
