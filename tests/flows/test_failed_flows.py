"""What flows raise in a script when they fail: errors of nasflow that say what to do."""

from tests.flows.forked_commands import run_forked
from tests.flows.recovery.test_recover import _DESERTS
from tests.flows.searches import ONE_TRIAL, Searches

SCRIPT = """
import os
from pathlib import Path

from nasflow.config import load_config
from nasflow.errors import NasflowError
from nasflow.flows import recover, retention, retry_failed, sampling_round

config = load_config(Path("hopeless.yaml"))
for flow, arguments in [
    (retry_failed, {"config": config}),
    (sampling_round, {"config": config, "number": 0}),
    (recover, {"grace_seconds": 0, "store": "sqlite:///dead.db"}),
    (retention, {"studies": "hopeless", "keep": 0, "dry_run": True}),
]:
    if flow is retention:
        os.rename("nasflow-runs/hopeless", "elsewhere")
    try:
        flow(**arguments)
    except NasflowError as error:
        print(f"{type(error).__name__}: {error}")
"""


def test_each_is_one_sentence(searches: Searches) -> None:
    space = {"target": "spaces.py:mixed", "params": {"kinds": ["raise"], "widths": [8]}}
    retry = {"delay_seconds": [0.1], "alone": 0}
    evaluator = {**ONE_TRIAL["evaluator"], "epochs": 2}
    hopeless = searches.write("hopeless", **{**ONE_TRIAL, "evaluator": evaluator, "space": space, "retry": retry})
    searches.run("run", hopeless, code=1)
    stranded = {"store": "sqlite:///dead.db", "base_dir": str(searches.folder)}  # where its space is not
    path = searches.write("stranded", **{**ONE_TRIAL, **stranded})
    run_forked(["python", "-c", _DESERTS, path], searches.folder, searches.server.env)
    variables = searches.server.env | {"NASFLOW_STORE": "sqlite:///nasflow.db"}
    ended = run_forked(["python", "-c", SCRIPT], searches.folder, variables)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "TrialError: study 'hopeless': 0 of 1 trials trained: nasflow show hopeless says why",
        "TrialError: round 0 of study 'hopeless': 0 of 1 trials scored, 1 failed: nasflow show hopeless says why",
        "NasflowError: 1 searches checked, some dead ones did not end well: the log of the flow run says why",
        "NasflowError: 1 old studies, of which some could not be removed: the log of the flow run says why",
    ]
