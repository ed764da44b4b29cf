"""Old studies go: by the command and by the flow, with the best model kept where that is asked for."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import load_config, parse_config
from nasflow.errors import CheckpointError, UserError
from nasflow.flows.purge import Purge, purge_studies
from nasflow.space.architecture import Architecture
from nasflow.study import retention
from nasflow.study.lease import Lease
from nasflow.study.study import Study, list_studies
from tests.flows.forked_commands import run_forked
from tests.flows.searches import Searches

CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 1},
    "budget": {"rounds": 1, "trials_per_round": 2},
    "training_service": {"kind": "debug"},
}


def names(store: str) -> list[str]:
    return [info.name for info in list_studies(store)]


@pytest.mark.timeout(900)
def test_old_studies_go_and_their_best_models_stay(searches: Searches):
    folder, store = searches.folder, f"sqlite:///{searches.folder}/nasflow.db"
    searches.write("old-1", **CONFIG)
    searches.run("run", "old-1.yaml")
    for name in ("old-2", "other"):
        searches.write(name, **CONFIG)
        Study.open(load_config(folder / f"{name}.yaml").model_copy(update={"store": store})).close()
    assert "give --older-than DAYS, --keep COUNT, or both" in searches.run("purge", "old-*", code=2)
    said = searches.run("purge", "old-*", "--keep", 1, "--dry-run")
    assert said.startswith("old-1: would be removed, last active ")
    assert names(store) == ["old-1", "old-2", "other"]

    # In a process of its own: the threads that Prefect keeps would draw from the random numbers of other tests.
    given = {"keep": 1, "export_best": str(folder / "kept"), "store": store}
    code = "import json, sys\nfrom nasflow.flows import retention\n"
    code += "print(retention('old-*', **json.loads(sys.argv[1]), return_state=True))"
    done = run_forked(["python", "-c", code, json.dumps(given)], folder, searches.server.env)
    assert done.stdout == "Completed('1 old studies')\n", done.stdout + done.stderr
    assert names(store) == ["old-2", "other"]
    assert not (folder / "nasflow-runs" / "old-1").exists()
    assert {"architecture.json", "score.py"} <= {path.name for path in (folder / "kept" / "old-1").iterdir()}


def lines_of(store: str, purge: Purge) -> tuple[bool, list[str]]:
    said: list[str] = []
    return purge_studies(store, purge, said.append), said


def study(folder: Path, name: str, lease: Lease | None = None) -> Study:
    values = {"name": name, **CONFIG, "store": f"sqlite:///{folder}/s.db", "work_dir": folder, "base_dir": folder}
    return Study.open(parse_config(values), lease)


def test_one_that_runs_stays_and_the_others_go(tmp_path):
    lease = Lease()
    held = study(tmp_path, "held", lease)
    study(tmp_path, "free").close()
    with lease.kept(lambda: None):
        gone, said = lines_of(held.config.store, Purge("*", keep=0))
    assert gone
    assert [line.partition(",")[0] for line in said] == ["held: stays", "free: removed"]
    assert names(held.config.store) == ["held"]
    held.close()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CheckpointError("no weights"), "no weights"),
        (AttributeError("no detach"), "its best model can't be exported: AttributeError: no detach"),
    ],
)
def test_what_can_not_be_removed_is_told_and_the_rest_goes(tmp_path, monkeypatch, error, told):
    for name in ("bad", "good"):
        study(tmp_path, name).close()
    store = f"sqlite:///{tmp_path}/s.db"

    def export(study: Study, out: Path) -> list[Path]:
        if study.name == "bad":
            raise error
        return [out]

    monkeypatch.setattr("nasflow.flows.purge._export", export)
    gone, said = lines_of(store, Purge("*", older_than_days=0, export=tmp_path / "kept"))
    assert not gone
    assert said[0] == f"bad: could not be removed: {told}"
    assert said[1].endswith(f"; its best model is in {tmp_path}/kept/good")
    assert names(store) == ["bad"]


def test_nothing_goes_where_nothing_says_what_may(tmp_path):
    with pytest.raises(UserError, match="nothing limits which studies are removed"):
        lines_of(f"sqlite:///{tmp_path}/s.db", Purge("*"))


def test_a_file_that_can_not_be_removed_and_a_study_that_is_gone_stop_nothing(tmp_path, monkeypatch):
    for name in ("a-gone", "b-stuck", "c-good"):
        study(tmp_path, name).close()
    store, load, empty = f"sqlite:///{tmp_path}/s.db", Study.load, retention._empty

    def vanished(url: str, name: str) -> Study:
        return load(url, "removed" if name == "a-gone" else name)

    def stuck(folder: Path) -> None:
        if folder.name == "b-stuck":
            raise PermissionError(errno.EACCES, "Permission denied", "b-stuck/model.ckpt")
        empty(folder)

    monkeypatch.setattr("nasflow.flows.purge.Study.load", vanished)
    monkeypatch.setattr(retention, "_empty", stuck)
    gone, said = lines_of(store, Purge("*", keep=0))
    assert not gone
    assert said[0].startswith("a-gone: could not be removed: there is no study 'removed'")
    assert said[1] == "b-stuck: could not be removed: [Errno 13] Permission denied: 'b-stuck/model.ckpt'"
    assert said[2].startswith("c-good: removed")


def test_a_dry_run_says_what_would_stay(tmp_path):
    """As the run after it: a study with trials whose folder is not on this machine."""
    for name in ("away", "here"):
        opened = study(tmp_path, name)
        if name == "away":
            opened.begin_round(0)
            opened.submit_trials(0, [Architecture({"width": 1})])
        opened.close()
    store = f"sqlite:///{tmp_path}/s.db"
    for dry_run, then in ((True, "would be removed"), (False, "removed")):
        gone, said = lines_of(store, Purge("*", keep=0, dry_run=dry_run))
        assert not gone
        told = {line.partition(": ")[0]: line.partition(": ")[2] for line in said}
        why = f"this machine does not have its folder {tmp_path}/away: remove it there"
        assert told["away"] == f"could not be removed: study 'away': {why}"
        assert told["here"].startswith(f"{then}, last active")
    assert names(store) == ["away"]
