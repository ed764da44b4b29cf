"""The contestants of `benchmarks.end_to_end` train the same models on the same data, and its figures are right."""

import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path

import optuna
import psutil
import pytest
import torch
from torch.utils.data import TensorDataset

from benchmarks.commands import ContestantError, CpuMeter, run_commands
from benchmarks.end_to_end import Record, difference, figures
from benchmarks.optuna_worker import Given, suggest
from benchmarks.plain_mlp import BATCH_SIZE, build_model, load_data
from benchmarks.searches import Contestant, OptunaRun, Outcome, Workload
from nasflow.config.search import parse_config
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.data import DigitsRows
from nasflow.space.architecture import Architecture

pytestmark = pytest.mark.long

WORKLOAD = Workload(trials=24, epochs=1, rounds=1, seed=0)


class Scripted(Contestant):
    """Gives what it is told to."""

    name = "scripted"

    def run(self, folder: Path, seed: int) -> Outcome:
        raise NotImplementedError


def record(outcomes: list[Outcome], trials: int = 4) -> Record:
    return Record(Scripted(WORKLOAD, trials), outcomes, *([0.0] * len(outcomes) for _ in range(3)))


def test_the_plain_model_is_nasflows() -> None:
    config = parse_config(WORKLOAD.config(Path()))
    space = candidate_space(config.space, config.evaluator, Path())
    rows = torch.rand(5, 64)
    assert {a["depth"] for a in WORKLOAD.architectures} == {1, 2, 3}
    for architecture in WORKLOAD.architectures:
        model, plain = space.build(architecture).model.eval(), build_model(architecture).eval()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(plain(rows), model(rows), rtol=0, atol=0)
        dropouts = [[m.p for m in net.modules() if isinstance(m, torch.nn.Dropout)] for net in (model, plain)]
        assert dropouts[0] == dropouts[1]


def test_the_plain_data_are_nasflows() -> None:
    for plain, ours in zip(load_data(), DigitsRows(), strict=True):
        assert isinstance(plain.dataset, TensorDataset)
        assert all(torch.equal(*pair) for pair in zip(plain.dataset.tensors, ours.tensors, strict=True))
        assert plain.batch_size == ours.batch_size
    assert WORKLOAD.config(Path())["evaluator"]["data"]["params"]["batch_size"] == BATCH_SIZE


def test_optuna_suggests_what_is_given() -> None:
    study = optuna.create_study(sampler=Given([dict(architecture) for architecture in WORKLOAD.architectures]))
    assert [Architecture(suggest(study.ask())) for _ in WORKLOAD.architectures] == WORKLOAD.architectures


def test_two_optuna_workers_train_each_architecture_once(tmp_path: Path) -> None:
    contestant = OptunaRun(WORKLOAD, 2)
    outcome = contestant.run(tmp_path, seed=0)
    assert len(outcome.accuracies) == 2
    assert all(0.05 < accuracy < 1 for accuracy in outcome.accuracies)
    assert 0 < outcome.span < outcome.wall


def test_accuracies_are_put_in_the_order_of_the_architectures() -> None:
    contestant = Scripted(WORKLOAD, 4)
    found = [(dict(a), index / 10) for index, a in enumerate(contestant.architectures)]
    random.Random(0).shuffle(found)
    assert contestant._in_order(found) == [0.0, 0.1, 0.2, 0.3]
    with pytest.raises(ContestantError, match="not the given ones"):
        contestant._in_order([*found[:-1], (dict(WORKLOAD.architectures[9]), 0.5)])
    with pytest.raises(ContestantError, match="not the given ones"):
        contestant._in_order([*found, found[0]])


def test_ratios_are_per_trial_and_differences_paired() -> None:
    ours = record([Outcome(8.0, 4.0, [0.5, 0.7, 0.9, 0.9]), Outcome(12.0, 4.0, [0.7, 0.7, 0.9, 0.9])])
    other = record([Outcome(20.0, 10.0, [0.7, 0.6]), Outcome(20.0, 12.0, [0.7, 0.8])], trials=2)
    found = figures(other, ours)
    assert found["wall_per_trial"] == 10
    assert found["ratio"] == pytest.approx((10 / 2 + 10 / 3) / 2)
    assert found["ratio_without_start"] == pytest.approx((5 / 2 + 6 / 3) / 2)
    mean, error = difference(other, ours)
    assert (mean, error) == (pytest.approx(0.05), pytest.approx(math.sqrt(2) * 0.05 / math.sqrt(2)))
    assert found["equal_within_noise"]
    json.dumps(found)


def test_a_failed_contestant_is_told_with_its_error() -> None:
    ours = record([Outcome(8.0, 4.0, [0.5] * 4)])
    failed = record([])
    failed.error = "no such package"
    assert figures(failed, ours) == {"trials": 4, "error": "no such package"}


def test_cpu_time_is_told_apart() -> None:
    meter = CpuMeter()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"], check=True)
    ours, others = meter.read()
    assert 1 <= ours < 3
    assert others >= 0


@pytest.mark.parametrize(
    ("code", "timeout", "message"),
    [("import sys; sys.exit('no luck')", 30, "exit code 1: no luck"), ("import time; time.sleep(60)", 1, "still")],
)
def test_a_command_that_fails_or_hangs_leaves_nothing(tmp_path: Path, code: str, timeout: float, message: str) -> None:
    orphan = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(61)'])\n"
    began = time.monotonic()
    with pytest.raises(ContestantError, match=message):
        run_commands([[sys.executable, "-c", orphan + code]], tmp_path, {}, timeout)
    assert time.monotonic() - began < 20
    assert not [p for p in psutil.process_iter(["cmdline"]) if "time.sleep(61)" in str(p.info["cmdline"])]
