"""What a member's module and callbacks see, and when, is what Lightning shows them; fused, apart and resumed alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from nasflow.job.events import Epoch, Final
from nasflow.training.member.metrics.metric_log import batch_size_of
from tests.training.fused_jobs import fused_and_apart, interrupted_as_whole, same
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, evictions, make_job, outcome, train
from tests.training.member.test_hooks import as_lightning, hooked

FILE = "attentive_modules.py"
LINEAR = "spaces.py:linear"
MEMBERS = {trial: {"classes": 3} for trial in range(2)}
EARLY = {
    "target": "pytorch_lightning.callbacks:EarlyStopping",
    "params": {"monitor": "val_acc", "mode": "max", "patience": 1, "min_delta": 1.0},
}
EARLY_LOSS = {**EARLY, "params": {"monitor": "val_loss", "patience": 9}}


@pytest.mark.parametrize("name", ["Scores", "Outer", "SkipsHalf", "OwnOptimizer", "Rates", "RatesOfHooklessBatches"])
def test_as_plain_lightning(name: str, tmp_path: Path) -> None:
    as_lightning(hooked(name, file=FILE), tmp_path)


@pytest.mark.parametrize("name", ["Scores", "Outer", "SkipsHalf", "Rates", "RatesOfHooklessBatches"])
def test_fused_and_apart(name: str, tmp_path: Path) -> None:
    config = hooked(name, file=FILE, data={"target": "spaces.py:blobs"})
    fused_and_apart(LINEAR, config, tmp_path, MEMBERS, all_fused=name != "Outer")


def test_of_a_name_that_is_logged_in_several_places_the_last_counts(tmp_path: Path) -> None:
    as_lightning(hooked("SharedStep", file="shared_names.py"), tmp_path / "as")
    config = hooked("SharedStep", file="shared_names.py", data={"target": "spaces.py:blobs"})
    fused_and_apart(LINEAR, config, tmp_path / "fused", MEMBERS)


def test_a_checkpoint_from_before_there_were_callbacks(tmp_path: Path) -> None:
    plain, called = (
        hooked("Plain", file="lightning_modules.py", callbacks=callbacks) for callbacks in ([], [EARLY_LOSS])
    )
    interrupted(make_job(LINEAR, plain, MEMBERS), tmp_path, 0, 1)
    assert not evictions(train(make_job(LINEAR, called, MEMBERS), tmp_path))


def test_means_over_batches_of_a_kind_of_their_own(tmp_path: Path) -> None:
    data = {"target": "shared_names.py:pairs"}
    as_lightning(hooked("TakesPairs", file="shared_names.py", data=data, precision="32-true"), tmp_path)


class Closed:
    """Has `__iter__`, and can't be iterated over."""

    def __iter__(self) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ({"id": np.array(3), "images": np.zeros((7, 2)), "x": torch.zeros(4, 2)}, 4),
        (["names", iter([torch.zeros(3)]), torch.tensor(1.0), torch.zeros(5)], 5),
        ([Closed(), torch.zeros(4)], 4),
        ([Closed()], 1),
        ([csr_matrix(np.eye(3)), torch.zeros(4)], 4),
        (csr_matrix(np.eye(3)), 1),
    ],
)
def test_the_size_of_a_batch(batch: Any, size: int) -> None:
    assert batch_size_of(batch) == size


def test_a_model_that_goes_by_its_trainer(tmp_path: Path) -> None:
    """Its layers are fused, and it is not: what it reads changes."""
    config = evaluator(precision="64-true", epochs=3)
    fused_and_apart(f"{FILE}:by_epoch", config, tmp_path, MEMBERS)


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_rates_of_a_resumed_job(fuse: Any, tmp_path: Path) -> None:
    config = hooked("Rates", file=FILE, data={"target": "spaces.py:blobs"})
    assert not evictions(interrupted_as_whole(make_job(LINEAR, config, MEMBERS, fuse=fuse), tmp_path))


@pytest.mark.parametrize("how", ["on_fit_start", "on_train_start"])
def test_what_was_thawed_stays_so_when_the_job_is_resumed(how: str, tmp_path: Path) -> None:
    """Also what is still frozen."""
    config = hooked("ThawsItself", file=FILE, params={"how": how})
    assert not evictions(interrupted_as_whole(make_job(LINEAR, config, MEMBERS), tmp_path))


def test_a_callback_that_monitors_a_metric(tmp_path: Path) -> None:
    config = hooked("Scores", file=FILE, callbacks=[EARLY])
    as_lightning(config, tmp_path / "as")
    events = train(make_job(LINEAR, config, MEMBERS), tmp_path / "job")
    assert {final.epochs for final in events if isinstance(final, Final)} == {2}
    fused_and_apart(LINEAR, config, tmp_path / "fused", MEMBERS)


def test_within_an_epoch_its_metrics_are_not_computed(tmp_path: Path) -> None:
    """Only the last epoch's are known; some of them can't be computed from the first batches."""
    config = hooked("Scores", file=FILE, callbacks=[{"target": f"{FILE}:ReadsBetween"}])
    events = train(make_job(LINEAR, config, [{"classes": 3}]), tmp_path)
    assert [event.metrics["known"] for event in events if isinstance(event, Epoch)] == [0.0, 1.0, 1.0]


def test_a_wish_to_stop_outlives_an_interruption(tmp_path: Path) -> None:
    """It is followed after the next validation."""
    config = hooked(
        "Plain",
        file="lightning_modules.py",
        epochs=6,
        validate_every=2,
        callbacks=[{"target": f"{FILE}:StopsItself"}],
    )
    job = make_job(LINEAR, config, [{"classes": 3}])
    whole = train(job, tmp_path / "whole")
    assert [final.epochs for final in whole if isinstance(final, Final)] == [4]
    interrupted(job, tmp_path / "stopped", 0, 3)
    events = train(job, tmp_path / "stopped")
    same(outcome(whole, tmp_path / "whole", 0), outcome(events, tmp_path / "stopped", 0), 0.0)
