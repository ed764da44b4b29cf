"""Shares of batches."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAUROC

from nasflow.config.evaluator.parallel import ParallelConfig
from nasflow.errors import TrialError
from nasflow.evaluator.loading.data_source import Data
from nasflow.job import activity
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.member.metrics.metric_states import forget_rows, metric_states
from nasflow.training.wide.link import Link
from nasflow.training.wide.rank import Task, in_turn, train
from nasflow.training.wide.ranks import Ranks
from nasflow.training.wide.shares import Share, ShareLoader, part_of, share_of
from nasflow.training.wide.together import are_finite, share_buffers, summed
from tests.training.models.spaces import Augmented, Pairs, blobs, rows
from tests.training.wide import modules
from tests.training.wide.jobs import wide


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


class ShuffledAtOnce:
    """A batch sampler that draws the order of its samples before its first batch is asked for."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(42).tolist()
        return iter([order[:20], order[20:40], order[40:]])

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    "kind",
    [
        *("tensors", "data set", "shuffled at once"),
        *(pytest.param(f"{kind} with workers", marks=pytest.mark.long) for kind in ("data set", "shuffled at once")),
    ],
)
def test_ranks_together_have_the_batches_of_one_process(kind: str) -> None:
    x, y = rows()

    def whole(limit: int | None = None) -> SeededLoader:
        if kind == "tensors":
            return SeededLoader(blobs(21)[0], 5, limit=limit)
        workers = 2 if "workers" in kind else 0
        if kind.startswith("shuffled"):
            return SeededLoader(
                DataLoader(Pairs(x, y), batch_sampler=ShuffledAtOnce(), num_workers=workers), 5, limit=limit
            )
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


@pytest.mark.parametrize(
    ("devices", "nodes", "turns"), [(3, 1, [{0}, {1, 2}]), (2, 2, [{0}, {2}, {1, 3}]), (1, 3, [{0}, {1, 2}])]
)
def test_data_are_prepared_on_one_rank_before_others_load_them(
    devices: int, nodes: int, turns: list[set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = ParallelConfig(devices=devices, nodes=nodes)
    together = {rank: threading.Barrier(len(turn)) for turn in turns for rank in [min(turn)]}
    began: list[tuple[int, float]] = []
    excused: list[float] = []
    monkeypatch.setattr(activity, "excuse", excused.append)

    def be(rank: int) -> None:
        def load() -> Data:
            began.append((rank, time.monotonic()))
            together[next(min(turn) for turn in turns if rank in turn)].wait(60)
            return Data((), None)

        in_turn(load, rank, parallel, FileStore(str(tmp_path / "store"), parallel.ranks))

    others = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(1, parallel.ranks)]
    for thread in others:
        thread.start()
    be(0)
    for thread in others:
        thread.join(60)
    order = [rank for rank, _ in began]
    assert [{order.pop(0) for _ in turn} for turn in turns] == turns
    assert len(excused) == len(turns)
    assert sum(excused) >= began[-1][1] - began[0][1], "for limits, each turn counts by itself"


def test_data_are_loaded_before_there_is_a_process_group(tmp_path: Path) -> None:
    """Else data code that has barriers where there is a group would wait for ranks that have not begun to load."""
    spec = wide(data={"target": f"{modules.__file__}:says_group"})
    task = Task(spec, spec.members[0], tmp_path, tmp_path / "store")
    ranks = Ranks(2, lambda rank, link: train(task, rank, link), 0)
    with pytest.raises(TrialError, match="ValueError: in a group: False"):
        ranks.receive(lambda: None)


def test_buffers_of_any_layout_are_those_of_rank_0(tmp_path: Path) -> None:
    def be(rank: int, link: Link) -> None:
        store = FileStore(str(tmp_path / "store"), 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        module, values = nn.Module(), torch.arange(6.0).reshape(2, 3) if rank == 0 else torch.zeros(2, 3)
        module.register_buffer("turned", values.t().contiguous().t() if rank == 0 else values)
        share_buffers(module)
        assert module.turned.tolist() == [[0, 1, 2], [3, 4, 5]]
        link.goes_on_after({})

    ranks = Ranks(2, be, 0)
    ranks.receive(lambda: None)
    ranks.end()


def test_weights_that_are_not_trained_may_be_anything() -> None:
    module = nn.Linear(2, 2)
    assert are_finite(module)
    module.mask = nn.Parameter(torch.tensor([0.0, float("-inf")]), requires_grad=False)
    assert are_finite(module)
    module.weight.data[0, 0] = float("nan")
    assert not are_finite(module)


def test_metrics_that_have_seen_no_samples_have_lists_like_those_of_other_ranks() -> None:
    """Else torchmetrics can't put them together."""
    module = nn.Module()
    module.auroc = MulticlassAUROC(3)
    before = tree_map_only(torch.Tensor, torch.clone, metric_states(module))
    module.auroc.update(torch.rand(1, 3), torch.tensor([2]))
    forget_rows(module, before)
    kept = [(list(values[0].shape), values[0].dtype) for values in (module.auroc.preds, module.auroc.target)]
    assert kept == [([0, 3], torch.float32), ([0], torch.int64)]
    scores, classes = torch.eye(3), torch.arange(3)
    module.auroc.update(scores, classes)
    assert module.auroc.compute() == 1.0


def test_logs_of_all_ranks() -> None:
    parts: Any = [{"loss": [3.0, 2], "most": [1.0, 1]}, {"loss": [5.0, 3], "most": [4.0, 1], "own": [1.0, 1]}]
    assert summed(parts, {"most": "max"}) == {"loss": [8.0, 5], "most": [4.0, 1], "own": [1.0, 1]}
