"""The merging benchmark measures what it says: the same work for every contestant, and figures that add up."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from benchmarks.merging.command import run_command
from benchmarks.merging.contestants import Contestant, Nasflow, Outcome, Processes, Sequential, run_job
from benchmarks.merging.floor import count_work
from benchmarks.merging.group import NEVER, ROOT
from benchmarks.merging.plain import Manner
from benchmarks.merging.timing import interleave
from benchmarks.merging.workloads import w1_mlps, w2_cells, w4_frozen_trunk, w5_faults, w5_outcome
from benchmarks.merging.workloads.spaces import FrozenTrunk
from nasflow.job.events import Epoch, Planned
from nasflow.space.architecture import Architecture
from nasflow.training.training_job import TrainingJob

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def mlps(members=3, epochs=2):
    return w1_mlps.make_group("a", members, epochs, seed=0)


def test_contestants_train_the_same_members_alike(tmp_path):
    group = mlps()
    plain = Sequential("plain", group).run()
    assert plain.accuracies.keys() == {0, 1, 2}
    assert plain.accuracy > 0.5
    others = [
        Sequential("tuned", group, manner=Manner(tuned=True)).run(),
        Nasflow("nasflow", group, tmp_path).run(),
        Nasflow("no checkpoints", group, tmp_path, NEVER).run(),
        Processes("process", replace(group, members=group.members[:1]), tmp_path).run(),
    ]
    for outcome in others:
        for trial, accuracy in outcome.accuracies.items():
            assert accuracy == pytest.approx(plain.accuracies[trial], abs=0.02)
    assert others[1].figures["step_seconds"] > 0
    assert others[3].figures["peak_bytes"] > 2**26


def test_images_are_trained_alike_too(tmp_path):
    group = w2_cells.make_group(4, 2, 1, seed=3)
    plain, tuned = (Sequential("b", group, manner=Manner(tuned)).run() for tuned in (False, True))
    merged = Nasflow("d", group, tmp_path).run()
    for trial, accuracy in plain.accuracies.items():
        assert tuned.accuracies[trial] == pytest.approx(accuracy, abs=0.05)
        assert merged.accuracies[trial] == pytest.approx(accuracy, abs=0.05)


def test_a_job_that_is_timed_again_starts_from_nothing(tmp_path):
    contestant = Nasflow("nasflow", mlps(members=1, epochs=1), tmp_path)
    laps = interleave([contestant], 2)
    steps = [lap.outcome.figures["step_seconds"] for lap in (laps.warm_up["nasflow"], *laps.timed["nasflow"])]
    assert len(set(steps)) == 3


class Recorded(Contestant):
    order: ClassVar[list[str]] = []

    def run(self):
        self.order.append(self.name)
        return Outcome({0: 0.5})


def test_every_repeat_runs_each_contestant_once_and_starts_with_another():
    group = mlps(members=4, epochs=1)
    Recorded.order.clear()
    laps = interleave([Recorded("x", group), Recorded("y", replace(group, members=group.members[:1]), 4)], 3)
    assert "".join(Recorded.order) == "xy" + "xy" + "yx" + "xy"
    assert [len(timed) for timed in laps.timed.values()] == [3, 3]
    assert laps.speed_up("x", "y") == pytest.approx(1 / laps.speed_up("y", "x"), rel=0.5)
    interleave([Recorded("x", group), Recorded("y", group)], 2, laps=laps)
    assert len(laps.timed["x"]) == len(laps.machine) == 5


def test_the_floor_counts_the_products_of_a_step():
    group = mlps(members=1, epochs=1)
    choices = {**group.members[0].architecture, "width": 32, "depth": 2, "activation": "relu"}
    member = group.members[0].model_copy(update={"architecture": Architecture(choices)})
    work = count_work(replace(group, members=(member,)))
    train, validation = 1437, 360
    first, rest = 64 * 32, 32 * 32 + 32 * 10
    # forward and weights' gradient everywhere, the input's gradient but for the first layer; only forward to validate
    products = train * (2 * first + 3 * rest) + validation * (first + rest)
    assert work.total_flops == pytest.approx(2 * products)
    assert work.model_steps == math.ceil(train / 64)


def test_a_frozen_trunk_counts_its_forward_pass_once():
    group = w4_frozen_trunk.make_group(1, 1, seed=0)
    trunk = 2 * (32 * 9 * 256 + 64 * 32 * 9 * 64 + 2 * 128 * 64 * 9 * 64 + 4096 * 256)
    flops = count_work(group).total_flops / (1437 + 360)
    assert trunk < flops < 1.05 * trunk


def test_a_sample_stands_for_cheap_and_costly_members():
    group = mlps(members=8, epochs=1)
    costs = {member.trial: float(7 - member.trial) for member in group.members}
    assert [member.trial for member in group.sample(2, costs).members] == [5, 1]
    assert group.sample(8, costs) is group


def test_the_trunk_is_the_same_and_frozen_in_every_member():
    torch.manual_seed(1)
    one = FrozenTrunk()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1)), "it takes nothing from the member's own random numbers"
    other = FrozenTrunk().train()
    assert not any(module.training for module in other.modules())
    assert not any(parameter.requires_grad for parameter in other.parameters())
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


@pytest.mark.parametrize("kind", ["diverge", "raise"])
def test_a_fault_costs_little_and_only_its_member(tmp_path, kind):
    group = w5_faults.make_group(channels=2, members=3, epochs=2, seed=0)
    run_job(group.job("clean"), tmp_path / "clean")
    found = w5_faults.run_inside(group, kind, tmp_path / "clean", tmp_path / kind)
    assert found["survivors"] == found["survivors_trained"] == found["survivors_bit_identical"] == 2
    assert found["largest_difference_of_accuracy"] == 0
    # 2 members x 2 epochs, and of the third an epoch if it got that far, and thrice what it began and lost
    begun = 43 % 23 + 1
    own = 3 * begun + (23 if kind == "raise" else 0)
    assert found["work"] == pytest.approx((2 * 2 * 23 + own) / (3 * 2 * 23))


def test_a_changed_survivor_is_seen(tmp_path):
    group = w5_faults.make_group(channels=2, members=2, epochs=1, seed=0)
    run_job(group.job("one"), tmp_path / "one")
    run_job(replace(group, data_seed=1).job("other"), tmp_path / "other")
    assert w5_outcome.same_checkpoint(tmp_path / "one", tmp_path / "one", 0)
    assert not w5_outcome.same_checkpoint(tmp_path / "one", tmp_path / "other", 0)


def test_w1_tells_ratios_that_follow_from_its_runs(tmp_path, capsys):
    words = "W1 --members 2 --epochs 1 --repeats 2 --contestants sequential tuned nasflow steps"
    path = tmp_path / "w1.json"
    assert run_command("", [*words.split(), "--json", str(path), "--folder", str(tmp_path)]) == 0
    [result] = json.loads(path.read_text())["results"]
    runs, row = result["runs"], result["contestants"]["(d) nasflow"]
    ratios = [b / d for b, d in zip(runs["(b) sequential"]["wall"], runs["(d) nasflow"]["wall"], strict=True)]
    assert row["over (b) sequential"] == pytest.approx(sum(ratios) / 2)
    assert row["share_of_floor"] == pytest.approx(result["floor_seconds"] / row["seconds"])
    assert result["model_steps"] == 2 * 23
    assert "(c) tuned sequential" in capsys.readouterr().out
    assert [entry.name for entry in tmp_path.iterdir()] == ["w1.json"], "nothing is left behind"


def test_w3_proves_one_data_pass(tmp_path):
    words = f"W3 --members 2 --images 128 --ratios 1 --repeats 1 --json {tmp_path / 'w3.json'}"
    assert run_command("", words.split()) == 0
    [result] = json.loads((tmp_path / "w3.json").read_text())["results"]
    passes = result["data_passes"]
    assert passes["(b) sequential"] == passes["(c) tuned sequential"] == 2
    assert passes["(d) nasflow"] == passes["(d) nasflow, no checkpoints"] == 1


def test_w6_refuses_in_one_sentence_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run_command("", ["W6"]) == 2
    assert "needs a CUDA GPU" in capsys.readouterr().out


def test_the_benchmark_is_pinned_to_one_core_and_thread(tmp_path: Path):
    (tmp_path / "probe.py").write_text(
        "import json, os\n"
        "from benchmarks.merging.pinning import pin\n"
        "pin('probe')\n"
        "print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS']]))\n"
    )
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system has no affinity")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "probe"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    cores, threads = json.loads(done.stdout)
    assert len(cores) == 1
    assert threads == "1"


class Interrupted(BaseException):
    """Ends a job from within."""


def test_members_of_w4_pass_their_trunk_once_also_after_an_interruption(tmp_path):
    spec = w4_frozen_trunk.make_group(2, 2, seed=0).job("trunk")
    spec = spec.model_copy(update={"merge": spec.merge.model_copy(update={"fuse": "always"})})
    events = []

    def tell(event):
        events.append(event)
        if isinstance(event, Epoch) and len(plans()) == 1:
            raise Interrupted

    def plans():
        return [event for event in events if isinstance(event, Planned)]

    with pytest.raises(Interrupted):
        TrainingJob(spec, tmp_path, tell).run()
    TrainingJob(spec, tmp_path, events.append).run()
    layers = sum(not list(layer.children()) for layer in FrozenTrunk().modules())
    assert [plan.units[0].kernels["once"] for plan in plans()] == [layers, layers]
