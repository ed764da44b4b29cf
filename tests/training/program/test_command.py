"""`kind: command`: any program trains, reports by lines in a file or by a command, and goes on where it was."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from nasflow.config.search import HalvingPrunerConfig
from nasflow.flows.cli import main
from nasflow.job.events import Alert, Epoch
from nasflow.job.spec import program_dir, stop_mark
from nasflow.training.program import trial as program_trial
from tests.training.program.jobs import command, curve, error, evaluator, final, loaded, make_job, train

COUNTS = """
state = folder / 'state.json'
done = json.loads(state.read_text()) if state.exists() else 0
for epoch in range(done + 1, 5):
    if epoch == 3 and not (folder / 'died').exists():
        (folder / 'died').touch()
        os.kill(os.getpid(), signal.SIGKILL)
    report(epoch=epoch, loss=10 - epoch)
    state.with_suffix('.new').write_text(str(epoch))
    state.with_suffix('.new').replace(state)
"""
NUMPY = """
import numpy as np
rng = np.random.default_rng(int(os.environ['NASFLOW_SEED']))
x = rng.normal(size=(200, 8))
y = x[:, 0]
inner, outer = rng.normal(size=(8, trial['architecture']['width'])) / 3, np.zeros(trial['architecture']['width'])
for epoch in range(trial['epochs']):
    hidden = np.tanh(x @ inner)
    off = hidden @ outer - y
    outer -= trial['params']['lr'] * hidden.T @ off / len(y)
    inner -= trial['params']['lr'] * x.T @ (off[:, None] * outer * (1 - hidden**2)) / len(y)
    report(loss=float((off**2).mean()))
"""


def test_it_finds_what_to_train(tmp_path: Path) -> None:
    code = "Path('seen').write_text(json.dumps([trial, os.environ['NASFLOW_SEED'], sys.executable])); report(loss=1)"
    params = {"lr": {"float": [0.1, 0.2]}, "name": "x"}
    spec = make_job(command(code, params=params), tmp_path, [{"width": 4, "params.lr": 0.15}], space="values")
    events = train(spec, tmp_path)
    seen, seed, python = loaded(tmp_path / "seen")
    assert seen == {
        "trial": 0,
        "architecture": {"width": 4, "params.lr": 0.15},
        "params": {"lr": 0.15, "name": "x"},
        "seed": 1000,
        "epochs": 4,
        "reported": 0,
    }
    assert seed == "1000" and Path(python).parent == Path(sys.executable).parent
    assert final(events).metrics == {"loss": 1.0, "parameters": 0.0}
    assert final(events).stopped_early, "it ended before its epochs"


def test_a_trial_in_numpy_alone(tmp_path: Path) -> None:
    config = command(NUMPY, epochs=60, params={"lr": 0.3})
    events = train(make_job(config, tmp_path, [{"width": 4}, {"width": 8}], space="values"), tmp_path)
    for trial in (0, 1):
        values = curve(events, trial=trial)
        assert len(values) == 60
        assert values[-1] < 0.7 * values[0]
        assert final(events, trial).epochs == 60


def test_a_killed_one_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    spec = make_job(command(COUNTS), tmp_path)
    first = train(spec, tmp_path)
    assert error(first).startswith("the trial's program was ended by SIGKILL") and curve(first) == [9, 8]
    assert curve([*first, *train(spec, tmp_path)]) == [9, 8, 7, 6]


def test_one_without_checkpoints_begins_again_but_repeats_nothing(tmp_path: Path) -> None:
    code = """
first = not Path('died').exists()
for epoch in range(4):
    if first and epoch == 2:
        Path('died').touch()
        with open(os.environ['NASFLOW_METRICS'], 'a') as file: file.write('{"loss": 7')
        sys.exit(3)
    report(loss=epoch + (0 if first else 100))
"""
    spec = make_job(command(code), tmp_path)
    first = train(spec, tmp_path)
    assert error(first) == "the trial's program exited with code 3" and curve(first) == [0, 1]
    assert curve([*first, *train(spec, tmp_path)]) == [0, 1, 102, 103], "the torn line counts for nothing"


def test_what_was_reported_while_no_job_looked_counts(tmp_path: Path) -> None:
    folder = program_dir(tmp_path, 0)
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "state.json").write_text("3")
    (folder / "reports").write_text("".join(json.dumps({"epoch": e, "loss": 10 - e}) + "\n" for e in (1, 2, 3)))
    assert curve(train(make_job(command(COUNTS), tmp_path), tmp_path)) == [9, 8, 7, 6]


def test_one_that_goes_on_has_to_name_its_epochs(tmp_path: Path) -> None:
    code = "(folder / 'state').touch(); report(loss=1); sys.exit(1 - (folder / 'died').exists())"
    spec = make_job(command(code), tmp_path)
    assert error(train(spec, tmp_path)) == "the trial's program exited with code 1"
    assert error(train(spec, tmp_path)).startswith(
        "the program goes on from checkpoints, so its reports have to say of which epoch they are; add 'epoch'"
    )


def test_one_that_saves_before_it_reports_is_told_and_begins_anew(tmp_path: Path) -> None:
    code = """
for epoch in range(1 + sum(1 for _ in folder.iterdir()), 5):
    (folder / str(epoch)).touch()
    if epoch == 2 and not Path('died').exists():
        Path('died').touch()
        os.kill(os.getpid(), signal.SIGKILL)
    report(epoch=epoch, loss=epoch)
"""
    spec = make_job(command(code), tmp_path)
    first, second = train(spec, tmp_path), train(spec, tmp_path)
    assert error(first).startswith("the trial's program was ended by SIGKILL")
    assert error(second).startswith("the program reported epoch 3, but never epoch 2; report an epoch before you save")
    assert curve([*first, *second, *train(spec, tmp_path)]) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("loss: 3", "it is no JSON: 'loss: 3'"),
        ("[1, 2]", "it is no JSON object of metrics by name: '[1, 2]'"),
        ('{"loss": "low"}', "metric 'loss' is 'low', which is no number"),
        ('{"loss": true}', "metric 'loss' is True, which is no number"),
        ('{"loss": [1]}', "metric 'loss' is [1], which is no number"),
        ('{"loss": 1' + "0" * 400 + "}", "metric 'loss' is larger than any float"),
        ('{"epoch": 0, "loss": 1}', "'epoch' is 0; it should be a whole number from 1 on"),
        ('{"epoch": 1.5, "loss": 1}', "'epoch' is 1.5; it should be"),
        ('{"epoch": 1}', "it has no metric"),
        ("{}", "it has no metric"),
    ],
)
def test_lines_that_are_no_report(tmp_path: Path, lines: str, says: str) -> None:
    code = f"open(os.environ['NASFLOW_METRICS'], 'a').write({lines!r} + '\\n'); time.sleep(1000)"
    told = error(train(make_job(command(code), tmp_path), tmp_path))
    assert told.startswith(f"the program reported a line that can't be used: {says}")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("pass", "the program ended without a report; report the metrics of each epoch"),
        ("report(val_loss=1)", "objectives: no metric 'loss' was reported in epoch 1; there are: val_loss"),
        ("report(loss=float('nan'))", "loss is nan after epoch 1"),
        ("sys.exit('no data here')", "the trial's program exited with code 1\nno data here"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the trial's program was ended by SIGSEGV"),
        ("os.kill(os.getpid(), 60)", "the trial's program was ended by signal 60"),
        (r"sys.stderr.buffer.write(b'\xff\x1b[31m'); sys.exit(9)", "the trial's program exited with code 9\n"),
        ("assert sys.stdin.read() == '' and False", "the trial's program exited with code 1\nTraceback"),
    ],
)
def test_mistakes_are_the_trials_own(tmp_path: Path, code: str, says: str) -> None:
    told = error(train(make_job(command(code), tmp_path), tmp_path))
    assert told.startswith(says) and "\x1b" not in told


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (["pythn", "train.py"], "evaluator.command: there is no program 'pythn' that can be run here; install it"),
        (["./script"], "evaluator.command: there is no program './script' that can be run here"),
        (["./torn"], "the trial's program exited with code 126\n"),
        (["python", "missing.py"], "the trial's program exited with code 2\n"),
    ],
)
def test_programs_that_can_not_be_started(tmp_path: Path, program: list[str], says: str) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "torn").write_bytes(b"\0\1\2")
    (tmp_path / "torn").chmod(0o755)
    events = train(make_job(evaluator(kind="command", command=program), tmp_path), tmp_path)
    assert error(events).startswith(says)


def test_one_that_runs_ahead_is_taken_at_its_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_trial, "_LEAVES", 0.1)
    code = "[report(loss=epoch) for epoch in range(5000)]; time.sleep(1000)"
    events = train(make_job(command(code), tmp_path), tmp_path)
    assert curve(events) == [0, 1, 2, 3] and not final(events).stopped_early


def test_it_may_end_its_work_after_its_last_report(tmp_path: Path) -> None:
    code = "[report(loss=epoch) for epoch in range(4)]; time.sleep(0.3); Path('model.bin').touch()"
    train(make_job(command(code), tmp_path), tmp_path)
    assert (tmp_path / "model.bin").exists()


def test_a_pruner_and_a_stop_request_end_it(tmp_path: Path) -> None:
    code = """
for epoch in range(1, 7):
    report(loss=trial['params']['start'] - 0.1 * epoch)
    if epoch == 2 and trial['params']['start'] == 5: time.sleep(1000)
"""
    config = command(code, epochs=6, params={"start": {"float": [0, 9]}})
    starts = [{"width": 4, "params.start": start} for start in (2.0, 5.0, 1.0, 0.5)]
    spec = make_job(config, tmp_path, starts, pruner=HalvingPrunerConfig(reduction_factor=2, min_epochs=2))
    mark = stop_mark(tmp_path, 3)
    mark.parent.mkdir(parents=True)
    mark.touch()
    events = train(spec, tmp_path)
    assert [final(events, trial).pruned for trial in range(4)] == [False, True, False, False]
    assert [final(events, trial).epochs for trial in range(4)] == [6, 2, 6, 1]
    assert [e.text for e in events if isinstance(e, Alert)] == ["trial 3 stops after epoch 1: that was asked for"]
    assert not any(isinstance(e, Epoch) and e.trial == 1 and e.epoch > 2 for e in events)


@pytest.mark.parametrize("apart", [False, True], ids=["in the group", "in a session of its own"])
def test_what_it_leaves_behind_is_ended(tmp_path: Path, apart: bool) -> None:
    code = f"""
import subprocess
child = subprocess.Popen(['sleep', '1000'], start_new_session={apart})
Path('child').write_text(str(child.pid))
report(loss=1)
"""
    events = train(make_job(command(code), tmp_path), tmp_path)
    assert final(events).epochs == 1
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))


def test_a_shell_script_reports_by_the_command(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\nnasflow report-metric epoch=1 loss=0.5 other=2 && nasflow report-metric loss=1e-3\n")
    script.chmod(0o755)
    events = train(make_job(evaluator(kind="command", command=["./train.sh"]), tmp_path), tmp_path)
    assert curve(events) == [0.5, 0.001] and curve(events[:2], "other") == [2.0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["loss=1"], "NASFLOW_METRICS is not set, so this is no trial of"),
        (["loss"], "'loss' should read name=value"),
        (["=3"], "'=3' should read name=value"),
        (["loss=low"], "'loss' is 'low', which is no number"),
        (["epoch=1.5", "loss=1"], "'epoch' is '1.5', which is no number"),
        (["epoch=3"], "it has no metric"),
    ],
)
def test_mistakes_of_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    if "NASFLOW" not in says:
        monkeypatch.setenv("NASFLOW_METRICS", str(tmp_path / "reports"))
    monkeypatch.setattr(sys, "argv", ["nasflow", "report-metric", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "reports").exists()


def test_the_command_imports_neither_torch_nor_prefect(tmp_path: Path) -> None:
    code: Any = """
import subprocess
said = subprocess.run([sys.executable, '-X', 'importtime', '-m', 'nasflow.flows.cli', 'report-metric', 'loss=1'],
                      stderr=subprocess.PIPE, text=True, check=True).stderr
names = {line.rpartition('|')[2].strip() for line in said.splitlines()}
Path('slow').write_text(' '.join(names & {'torch', 'prefect', 'pytorch_lightning', 'numpy', 'sqlalchemy'}))
"""
    assert curve(train(make_job(command(code), tmp_path), tmp_path)) == [1.0]
    assert (tmp_path / "slow").read_text() == ""
