"""`kind: function`: a plain function trains, reports, saves, and goes on where it was."""

import json
from pathlib import Path

import pytest

from nasflow.config.search import HalvingPrunerConfig, LimitsConfig, MedianPrunerConfig
from nasflow.job.events import Alert, Entered, Epoch, Evicted, Final
from nasflow.job.spec import stop_mark
from nasflow.training.program import trial as program_trial
from tests.training.program.jobs import curve, error, final, function, make_job, train

STOPPING = {"metric": "loss", "patience": 2, "min_delta": 5}


def test_it_trains_reports_and_ends(tmp_path: Path) -> None:
    events = train(make_job(function("train"), tmp_path, [{"width": 4}, {"width": 8}]), tmp_path)
    for trial, width in enumerate((4, 8)):
        values = curve(events, trial=trial)
        assert len(values) == 4
        assert final(events, trial).metrics == {"loss": values[-1], "parameters": 8 * width + width + width + 1}
        assert not final(events, trial).stopped_early
    assert curve(events, trial=0) != curve(events, trial=1)
    assert [event.trial for event in events if isinstance(event, Entered)] == [1], "one at a time"


@pytest.mark.long
def test_the_same_again_gives_the_same(tmp_path: Path) -> None:
    twice = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        twice.append(curve(train(make_job(function("train"), tmp_path / name), tmp_path / name)))
    assert twice[0] == twice[1], "the weights, dropout and NumPy's noise follow from the seed"


@pytest.mark.long
def test_a_killed_one_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = curve(train(make_job(function("train"), tmp_path / "whole"), tmp_path / "whole"))
    spec = make_job(function("train", {"die": 2}), tmp_path / "killed")
    first = train(spec, tmp_path / "killed")
    assert error(first).startswith(
        "the trial's program was ended by SIGKILL, as when the machine has too little memory"
    )
    assert len(curve(first)) == 2
    assert curve([*first, *train(spec, tmp_path / "killed")]) == whole


def test_one_that_saves_nothing_repeats_no_reported_epoch(tmp_path: Path) -> None:
    config = function("plain", {"curve": [3.0, 2.0]})
    first = train(make_job(config, tmp_path), tmp_path)
    assert (curve(first), final(first).epochs, final(first).stopped_early) == ([3.0, 2.0], 2, True)
    assert (tmp_path / "starts").read_text() == "x"


@pytest.mark.long
def test_it_repeats_what_it_did_not_save_but_reports_it_once(tmp_path: Path) -> None:
    spec = make_job(function("odd_saver"), tmp_path)
    first = train(spec, tmp_path)
    assert len(curve(first)) == 3
    assert curve([*first, *train(spec, tmp_path)]) == [0, 1, 3, 6]
    assert (tmp_path / "trained").read_text() == "123" + "34", "it goes on after the second epoch"


@pytest.mark.long
def test_one_that_was_killed_may_still_go_back_to_what_it_saved(tmp_path: Path) -> None:
    spec = make_job(function("goes_back"), tmp_path)
    assert curve([*train(spec, tmp_path), *train(spec, tmp_path)]) == [1, 2, 2, 2]


@pytest.mark.long
def test_what_it_may_save(tmp_path: Path) -> None:
    spec = make_job(function("of_every_kind", epochs=2), tmp_path)
    first = train(spec, tmp_path)
    assert curve([*first, *train(spec, tmp_path)]) == [1.0, 0.5]
    assert json.loads((tmp_path / "loaded").read_text()) == [[1, [2.5, None]], "seven", [0, 1, 2]]


def test_an_endless_one_ends_with_its_last_epoch_and_cleans_up(tmp_path: Path) -> None:
    events = train(make_job(function("endless"), tmp_path), tmp_path)
    assert curve(events, "tensor") == [1, 2, 3, 4]
    assert not final(events).stopped_early
    assert (tmp_path / "cleaned").read_text() == "4"


@pytest.mark.long
def test_one_that_swallows_the_end_is_told_why(tmp_path: Path) -> None:
    events = train(make_job(function("swallows"), tmp_path), tmp_path)
    assert final(events).epochs == 4
    assert (tmp_path / "told").read_text() == "TrainingEnded: the trial ends after epoch 4"


@pytest.mark.long
def test_early_stopping_ends_it(tmp_path: Path) -> None:
    events = train(make_job(function("endless", epochs=9, early_stopping=STOPPING), tmp_path), tmp_path)
    assert (final(events).epochs, final(events).stopped_early) == (3, True)
    assert (tmp_path / "cleaned").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("pruner", "epochs"),
    [(HalvingPrunerConfig(reduction_factor=2, min_epochs=2), 2), (MedianPrunerConfig(min_others=1), 2)],
    ids=["halving", "median"],
)
def test_pruners_compare_it_with_those_before(tmp_path: Path, pruner: HalvingPrunerConfig, epochs: int) -> None:
    config = function("curved", {"start": {"float": [0, 9]}}, epochs=6)
    starts = [{"width": 4, "params.start": start} for start in (2.0, 1.0, 5.0, 0.5)]
    events = train(make_job(config, tmp_path, starts, pruner=pruner), tmp_path)
    assert [final(events, trial).pruned for trial in range(4)] == [False, False, True, False]
    assert final(events, 2).epochs <= epochs
    again = train(make_job(config, tmp_path, starts, pruner=pruner), tmp_path)
    assert not [event for event in again if isinstance(event, Epoch) and not event.replayed]
    assert [final(again, trial).pruned for trial in range(4)] == [False, False, True, False]


@pytest.mark.long
def test_a_stop_request_and_a_limit_end_it_after_an_epoch(tmp_path: Path) -> None:
    spec = make_job(function("endless", epochs=50), tmp_path, [{"width": 4}, {"width": 8}])
    mark = stop_mark(tmp_path, 0)
    mark.parent.mkdir(parents=True)
    mark.touch()
    events = train(spec.model_copy(update={"limits": LimitsConfig(trial=0.0001)}), tmp_path)
    assert [(final(events, trial).epochs, final(events, trial).stopped_early) for trial in (0, 1)] == [(1, True)] * 2
    assert [event.text for event in events if isinstance(event, Alert)] == [
        "trial 0 stops after epoch 1: that was asked for",
        "trial 1 stops after epoch 1: limits.trial is 0.0001s",
    ]


MISTAKES = {
    "fails": ("ValueError: the sky has fallen", 2),
    "leaves": ("SystemExit: not today", 1),
    "unpackable": ("CheckpointError: ", 0),
    "texts": ("TypeError: report(...) can't be used: metric 'loss' is \"'low'\", which is no number", 0),
    "lacks_some": ("objectives: no metric 'loss' was reported in epoch 1; there are: val_accuracy", 0),
    "without_report": ("evaluator.target: ", 0),
    "nowhere": ("target '", 0),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_the_trials_own(tmp_path: Path, name: str) -> None:
    says, epochs = MISTAKES[name]
    events = train(make_job(function(name), tmp_path, [{"width": 4}, {"width": 8}]), tmp_path)
    for trial in (0, 1):
        assert error(events, trial).startswith(says)
        assert len(curve(events, trial=trial)) == epochs
    assert [event.epoch for event in events if isinstance(event, Evicted)] == [epochs + 1] * 2


@pytest.mark.long
def test_nobody_waits_for_a_report_that_does_not_come(tmp_path: Path) -> None:
    says = error(train(make_job(function("plain", {"curve": []}), tmp_path), tmp_path))
    assert says == "the program ended without a report; report the metrics of each epoch"


@pytest.mark.long
def test_a_loss_that_is_not_finite_fails_it(tmp_path: Path) -> None:
    events = train(make_job(function("diverges"), tmp_path), tmp_path)
    assert error(events) == "loss is inf after epoch 2"


def test_a_flood_of_output_is_cut(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    events = train(make_job(function("many"), tmp_path), tmp_path)
    assert error(events).startswith("RuntimeError: after the flood")
    out, err = capfd.readouterr()
    for text in (out, err):
        assert 2**20 <= len(text) < 2**20 + 1000
        assert "printed more than 1048576 bytes; the rest is left out" in text


@pytest.mark.long
def test_the_next_trial_goes_on_after_one_that_failed(tmp_path: Path) -> None:
    config = function("fails", {"when": {"pick": [0, 9]}})
    members = [{"width": 4, "params.when": when} for when in (0, 9, 0)]
    events = train(make_job(config, tmp_path, members), tmp_path)
    assert {event.trial for event in events if isinstance(event, Evicted)} == {0, 2}
    assert final(events, 1).epochs == 4
    assert [event.trial for event in events if isinstance(event, Final)] == [1]


@pytest.mark.long
def test_a_function_that_does_not_return_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_trial, "_LEAVES", 0.1)
    events = train(make_job(function("parent", epochs=1), tmp_path), tmp_path)
    assert final(events).epochs == 1


@pytest.mark.long
def test_a_process_that_it_forks_may_report(tmp_path: Path) -> None:
    events = train(make_job(function("in_child"), tmp_path), tmp_path)
    assert (curve(events), final(events).epochs) == ([3.0, 2.0, 1.0], 3)


def test_several_processes_that_report_are_refused_at_once(tmp_path: Path) -> None:
    events = train(make_job(function("in_children"), tmp_path), tmp_path)
    assert error(events).startswith("epoch 1 was reported twice: several processes call 'report'")
    assert curve(events) == [1.0]
