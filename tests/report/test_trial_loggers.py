"""A run for each trial in the trackers: the same merged and alone, and each epoch once whatever is interrupted."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nasflow.errors import ConfigError
from nasflow.job.events import Epoch, Event, Evicted, Final, Started
from nasflow.report import trial_loggers
from nasflow.report.trial_loggers import TrialLoggers, check_loggers
from tests.training.jobs import evaluator, make_job, sample, train

ON_DISK = ("csv", "tensorboard")
CHOICES = {"width": 8, "op/0": "conv 3x3", "ops": ["a", "b"], "lr": 0.01, "none": None}


def epoch(number: int, trial: int = 3) -> Epoch:
    return Epoch(trial=trial, epoch=number, metrics={"val_loss": 1 / number, "val_accuracy": number / 10, "odd": None})


def final(epochs: int, trial: int = 3) -> Final:
    return Final(trial=trial, epochs=epochs, metrics={"val_loss": 1 / epochs, "parameters": 100.0})


class Tracked:
    """The loggers of a study whose record is kept here, as the flows do: on record first, then told."""

    def __init__(self, folder: Path, names: Sequence[Any] = ON_DISK):
        self.folder, self.names = folder, names
        self.record: dict[int, dict[int, Any]] = {}
        self.loggers = self.session()

    def session(self) -> TrialLoggers:
        """A controller's."""
        return TrialLoggers(
            self.names,
            study="digits",
            identity="2026-01-01",
            folder=self.folder,
            choices=lambda trial: CHOICES,
            epochs=lambda trial: list(self.record.get(trial, {}).items()),
        )

    def tell(self, *events: Event) -> None:
        for event in events:
            if isinstance(event, Epoch):
                self.record.setdefault(event.trial, {}).setdefault(event.epoch, event.metrics)
            self.loggers.on_event(event)

    def killed_and_resumed(self) -> None:
        """Nothing is closed."""
        self.loggers = self.session()


def csv_rows(folder: Path, trial: int = 3) -> list[dict[str, str]]:
    with (folder / "csv" / f"trial-{trial:05d}" / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def scalars(folder: Path, trial: int = 3) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder / "tensorboard" / f"trial-{trial:05d}"), {"scalars": 0})
    found.Reload()
    return {tag: [(s.step, pytest.approx(s.value)) for s in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def assert_once(folder: Path, epochs: int) -> None:
    assert [int(row["step"]) for row in csv_rows(folder)] == [*range(1, epochs + 1)]
    losses = [(number, 1 / number) for number in range(1, epochs + 1)]
    assert [(int(row["step"]), float(row["val_loss"])) for row in csv_rows(folder)] == losses
    assert scalars(folder)["val_loss"] == losses


def test_a_trial_has_a_run_of_its_own(tmp_path: Path) -> None:
    tracked = Tracked(tmp_path)
    tracked.tell(Started(resumed={3: 0, 4: 0}), epoch(1), epoch(1, trial=4), epoch(2), final(2), epoch(2, trial=4))
    assert_once(tmp_path, 2)
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == ["trial-00003", "trial-00004"]
    assert "odd" not in csv_rows(tmp_path)[0], "what is not finite is left out"
    assert yaml.safe_load((tmp_path / "csv/trial-00003/hparams.yaml").read_text()) == CHOICES
    assert scalars(tmp_path)["final/parameters"] == [(2, 100.0)]
    found = EventAccumulator(str(tmp_path / "tensorboard/trial-00003")).Reload()
    assert "_hparams_/session_start_info" in found.summary_metadata
    assert b"conv 3x3" in found.summary_metadata["_hparams_/session_start_info"].plugin_data.content


@pytest.mark.parametrize("told_again", [0, 1, 3])
def test_a_killed_session_is_taken_up_without_a_repeated_epoch(tmp_path: Path, told_again: int) -> None:
    """The events of a job that is still alive are read again from their beginning; those of a new one repeat some."""
    tracked = Tracked(tmp_path)
    tracked.tell(epoch(1), epoch(2), epoch(3))
    tracked.killed_and_resumed()
    tracked.tell(*(epoch(number) for number in range(4 - told_again, 6)))
    assert_once(tmp_path, 5)
    tracked.tell(final(5))
    tracked.killed_and_resumed()
    tracked.tell(*(epoch(number) for number in range(1, 6)), final(5))
    assert_once(tmp_path, 5)
    assert scalars(tmp_path)["final/val_loss"] == [(5, 0.2)]


def test_an_epoch_on_record_that_was_never_logged_comes_with_the_next(tmp_path: Path) -> None:
    tracked = Tracked(tmp_path)
    tracked.tell(epoch(1))
    tracked.record[3][2] = epoch(2).metrics  # the controller was killed before it told the loggers
    tracked.killed_and_resumed()
    tracked.tell(epoch(3))
    assert_once(tmp_path, 3)


def test_a_failed_trial_goes_on_in_its_run_when_it_is_retried(tmp_path: Path) -> None:
    tracked = Tracked(tmp_path)
    tracked.tell(epoch(1), Evicted(trial=3, epoch=2, error="loss is nan"), epoch(1), epoch(2), final(2))
    assert_once(tmp_path, 2)


def test_merged_and_alone_log_the_same(tmp_path: Path) -> None:
    config = evaluator(epochs=2)
    members = dict(enumerate(sample("spaces.py:net", config, 2)))
    companies = {"merged": [members], "alone": [{number: chosen} for number, chosen in members.items()]}
    for name, jobs in companies.items():
        tracked = Tracked(tmp_path / name, ["csv"])
        for place, some in enumerate(jobs):
            tracked.tell(*train(make_job("spaces.py:net", config, some), tmp_path / name / f"job{place}"))
    for trial in members:
        assert len(csv_rows(tmp_path / "merged", trial)) == 2
        assert csv_rows(tmp_path / "merged", trial) == csv_rows(tmp_path / "alone", trial)


def test_a_logger_that_fails_is_left_alone_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracked = Tracked(tmp_path)
    (tmp_path / "tensorboard").write_text("a file where its folder should be")
    tracked.tell(epoch(1), epoch(2), final(2))
    tracked.loggers.close()
    assert len(csv_rows(tmp_path)) == 2
    warnings = [record.message for record in caplog.records if "tensorboard" in record.message]
    assert len(warnings) == 1 and "no longer logged to tensorboard" in warnings[0]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_loggers, "find_spec", lambda name: None)
    check_loggers(["csv"])
    with pytest.raises(ConfigError, match=r"^loggers: 'mlflow' needs a package .* pip install 'nasflow\[mlflow\]'$"):
        check_loggers(["csv", "mlflow"])


def test_mlflow_has_a_run_for_each_trial_and_each_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs MLflow, whose packages do not go with Prefect's")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    tracked = Tracked(tmp_path, ["mlflow"])
    tracked.tell(epoch(1), epoch(1, trial=4), epoch(2))
    tracked.killed_and_resumed()
    tracked.tell(epoch(1), epoch(2), epoch(3), final(3))
    tracked.killed_and_resumed()
    tracked.tell(epoch(1), epoch(2), epoch(3), final(3))
    client = mlflow.tracking.MlflowClient()
    experiment = client.get_experiment_by_name("digits")
    runs = {run.data.tags["nasflow.trial"]: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {"3", "4"}
    assert [runs[trial].info.status for trial in "34"] == ["FINISHED", "RUNNING"]
    assert runs["3"].data.params["op/0"] == "conv 3x3"
    history = client.get_metric_history(runs["3"].info.run_id, "val_loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert len(client.get_metric_history(runs["3"].info.run_id, "final/parameters")) == 1
