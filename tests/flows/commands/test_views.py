"""`nasflow show --json` of a large study comes page by page."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.study.filling import A_BATCH, architecture, fill, study_config
from nasflow.flows.cli import app
from nasflow.flows.commands.options import DEFAULT_STORE, store_option
from nasflow.space.architecture import Architecture
from nasflow.study.records import AttemptState, FinalRecord
from nasflow.study.study import Study
from nasflow.trial import TrialStatus

TRIALS, LIMIT = 250, 120


@pytest.fixture
def store(tmp_path: Path) -> str:
    config = study_config(tmp_path)
    study = Study.open(config)
    fill(study, TRIALS)
    study.close()
    return str(config.store)


def show(*arguments: str) -> tuple[dict, str]:
    """What is printed for a program, and the note for a person."""
    done = CliRunner().invoke(app, ["show", "large", "--json", *arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), done.stderr


def test_the_pages_of_a_study(store: str) -> None:
    page, note = show("--store", store, "--limit", str(LIMIT))
    assert "trials 0 to 119 of 250" in note
    pages = [page]
    while note:
        command = shlex.split(note.partition("the next ones: ")[2])
        assert command[:4] == ["nasflow", "show", "large", "--json"]
        page, note = show("--store", store, *command[4:])
        pages.append(page)
    assert [page["next"] for page in pages] == [120, 240, None]
    assert [trial["number"] for page in pages for trial in page["trials"]] == list(range(TRIALS))
    assert {len(page["rounds"]) for page in pages} == {3}
    for page in pages:
        numbers = {trial["number"] for trial in page["trials"]}
        assert all(numbers & {*attempt["members"]} for attempt in page["attempts"])
    batches = [a["members"] for a in pages[0]["attempts"] if a["kind"] == "batch"]
    assert batches == [list(range(at, at + A_BATCH)) for at in range(0, LIMIT, A_BATCH)]
    everything, note = show("--store", store)
    assert (len(everything["trials"]), everything["next"], note) == (TRIALS, None, "")
    assert everything["attempts"] == attempts_of(pages)


def test_the_choices_of_the_best_trials_are_whole(tmp_path: Path) -> None:
    choices = {"lr": 0.00123456789, **{f"layer{number}": "conv3x3" for number in range(60)}}
    study = Study.open(study_config(tmp_path))
    study.begin_round(0)
    study.submit_trials(0, [Architecture(choices)])
    [batch] = study.plan_batches(0, [[0]])
    study.record_outcome(batch.id, AttemptState.SUCCEEDED, [FinalRecord(0, {"val_accuracy": 0.5}, 1)])
    done = CliRunner().invoke(app, ["leaderboard", "large", "--json", "--store", study.config.store])
    assert [row["architecture"] for row in json.loads(done.stdout)] == [choices]
    study.close()


def test_the_commands_that_are_shown_find_the_store(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*arguments: str) -> str:
        done = CliRunner(env={"COLUMNS": "1000"}).invoke(app, ["show", "large", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    again = "train the failed ones again with: nasflow retry large"
    assert f"{again} --store {store}\n" in shown("--store", store)
    more = f"nasflow show large --json --from 9 --limit 9 --store {store}\n"
    assert more in shown("--json", "--limit", "9", "--store", store)
    monkeypatch.setenv("NASFLOW_STORE", store)
    assert f"{again}\n" in shown()
    assert "--limit 9\n" in shown("--json", "--limit", "9")
    monkeypatch.setenv("NASFLOW_STORE", "sqlite:///other.db")
    assert f"{again} --store {store}\n" in shown("--store", store)


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NASFLOW_STORE", raising=False)
    assert store_option(DEFAULT_STORE) == []
    assert store_option("postgresql://me:secret@db/studies") == ["--store", "postgresql://me:***@db/studies"]


def test_invalid_trials_are_not_to_be_trained_again(tmp_path: Path) -> None:
    study = Study.open(study_config(tmp_path))
    study.begin_round(0)
    [trial] = study.submit_trials(0, [architecture(0)])
    study.fail_trial(trial.number, "it does not fit", TrialStatus.INVALID)
    done = CliRunner().invoke(app, ["show", "large", "--store", study.config.store])
    assert "invalid" in done.output and "nasflow retry" not in done.output
    study.close()


def attempts_of(pages: list[dict]) -> list[dict]:
    """The attempts of all pages, each once."""
    found = {json.dumps(attempt): attempt for page in pages for attempt in page["attempts"]}
    return sorted(found.values(), key=lambda a: (a["round"], a["kind"] != "batch", a["number"]))


def test_a_page_behind_the_last_trial_is_empty(store: str) -> None:
    page, note = show("--store", store, "--from", str(TRIALS))
    assert (page["trials"], page["attempts"], page["next"], note) == ([], [], None, "")


@pytest.mark.parametrize(
    "command",
    [
        ["show", "large", "--json", "--from"],
        ["show", "large", "--json", "--limit"],
        ["leaderboard", "large", "--top"],
        ["stop-trial", "large"],
        ["purge", "nothing", "--dry-run", "--older-than"],
    ],
)
def test_a_number_that_no_store_can_hold_is_refused(command: list[str], store: str) -> None:
    done = CliRunner().invoke(app, [*command, "9" * 25, "--store", store])
    assert done.exit_code == 2
    assert "less than or equal to" in " ".join(done.output.replace("│", " ").split())


def test_a_trial_is_stopped_while_nothing_trains(tmp_path: Path) -> None:
    config = study_config(tmp_path)
    study = Study.open(config)
    study.begin_round(0)
    study.submit_trials(0, [architecture(0)])
    study.close()
    done = CliRunner().invoke(app, ["stop-trial", config.name, "0", "--store", config.store])
    assert done.exit_code == 0
    assert "no controller runs the study now" in " ".join(done.output.split())
