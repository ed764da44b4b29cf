"""`evaluator.parallel` in a config: what it sets, and what can't be combined with it."""

from typing import Any

import pytest

from nasflow.config.search import SearchConfig, parse_config
from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ConfigError
from nasflow.training_service.local.slots import gpu_slots, slot_environments

LOCAL = {"kind": "local", "slots": 4}


def config(evaluator: dict[str, Any] | None = None, **values: Any) -> SearchConfig:
    trained = {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "parallel": {"devices": 2},
        **(evaluator or {}),
    }
    target = {"target": "nasflow.space.ready:mlp"}
    return parse_config({"name": "wide", "space": target, "evaluator": trained, "training_service": LOCAL, **values})


def test_each_trial_has_a_job_with_so_many_slots() -> None:
    parsed = config()
    assert not parsed.merge.enabled
    assert isinstance(parsed.training_service, LocalServiceConfig)
    environments = slot_environments(parsed.training_service)
    assert list(environments) == ["cpu-0", "cpu-1"]
    assert parse_config(parsed.model_dump(mode="json")) == parsed


def test_only_large_trials_are_not_merged() -> None:
    parsed = config({"parallel": {"devices": 2, "min_parameters": 1000}})
    assert parsed.merge.enabled and parsed.devices_of_job == 2
    assert [parsed.is_wide(parameters) for parameters in (0, 999, 1000, 10**9)] == [False, False, True, True]
    assert parse_config(parsed.model_dump(mode="json")) == parsed
    assert config().is_wide(0)
    assert not config({"parallel": None}).is_wide(10**9)


@pytest.mark.parametrize(
    ("service", "devices"),
    [
        (LOCAL, 1),
        ({**LOCAL, "devices_per_job": 2}, 2),
        ({"kind": "local", "gpus": [0, 1, 2], "devices_per_job": 3}, 3),
        ({"kind": "slurm"}, 1),
        ({"kind": "slurm", "gpus_per_job": 4}, 4),
        ({"kind": "ray", "gpus_per_job": 0.5}, 1),
        ({"kind": "ray", "gpus_per_job": 2}, 2),
        ([LOCAL, {"kind": "slurm", "gpus_per_job": 1}], 1),
        ([{"kind": "local", "gpus": [0, 1], "devices_per_job": 2}, {"kind": "slurm", "gpus_per_job": 2}], 2),
    ],
    ids=str,
)
def test_the_devices_over_which_a_job_spreads_its_trials(service: Any, devices: int) -> None:
    assert config({"parallel": None}, training_service=service).devices_of_job == devices
    program = {"kind": "function", "target": "train.py:train"}
    search = {"name": "own", "space": {"target": "nasflow.space.ready:mlp"}, "training_service": service}
    objectives = [{"metric": "loss", "direction": "minimize"}]
    assert parse_config({**search, "evaluator": program, "objectives": objectives}).devices_of_job == 1


def test_without_it_nothing_changes() -> None:
    parsed = config({"parallel": None})
    assert parsed.merge.enabled
    assert list(slot_environments(parsed.training_service)) == [f"cpu-{k}" for k in range(4)]  # type: ignore[arg-type]


def test_a_job_sees_its_gpus() -> None:
    parsed = config(training_service={"kind": "local", "gpus": [0, 1, 3, 5, 6]}).training_service
    assert isinstance(parsed, LocalServiceConfig)
    seen = {slot: environment["CUDA_VISIBLE_DEVICES"] for slot, environment in slot_environments(parsed).items()}
    assert seen == {"gpu-0+1.0": "0,1", "gpu-3+5.0": "3,5"}
    assert gpu_slots(parsed) == {gpu: [slot] for slot, gpus in seen.items() for gpu in map(int, gpus.split(","))}


@pytest.mark.parametrize(
    ("evaluator", "values", "words"),
    [
        ({"parallel": {"devices": 2, "nodes": 2}}, {}, "evaluator.parallel.nodes: a trial can't have several machines"),
        ({"parallel": {"devices": 1}}, {}, "evaluator.parallel.devices: Input should be greater than or equal to 2"),
        ({"parallel": {"devices": 2, "strategy": "zero"}}, {}, "evaluator.parallel.strategy: "),
        ({"folds": 3}, {}, "'parallel' can't be combined with 'folds' yet"),
        ({"repeats": 3}, {}, "'parallel' can't be combined with 'repeats' yet"),
        ({"ema": {}}, {}, "'parallel' can't be combined with 'ema' yet"),
        ({"precision": "16-mixed"}, {}, "'parallel' can't be combined with 'precision' 16-mixed yet"),
        ({"class_weights": "balanced"}, {}, "'parallel' can't be combined with 'class_weights' yet"),
        ({"stop_after": 2}, {}, "'parallel' can't be combined with 'stop_after' yet"),
        ({"kind": "function", "target": "f:f", "data": None}, {}, "evaluator.parallel: unknown key"),
        (
            {},
            {"training_service": {"kind": "slurm"}},
            "'parallel' needs training_service.kind local so far, and it is sl",
        ),
        ({}, {"training_service": [LOCAL]}, "'parallel' needs training_service.kind local so far, and it is several"),
        (
            {"parallel": {"devices": 5}},
            {},
            "'parallel' asks for 5 devices, and training_service has 4; change evaluator.parallel.devices or "
            "training_service.slots",
        ),
        ({"parallel": {"devices": 3}}, {"training_service": {"kind": "local", "gpus": [0]}}, "training_service.gpus"),
        ({}, {"training_service": {**LOCAL, "devices_per_job": 3}}, "follows from evaluator.parallel.devices"),
        (
            {"parallel": None},
            {"training_service": {**LOCAL, "devices_per_job": 5}},
            "training_service: a job takes 5 devices ('devices_per_job'), and there are 4; give it less, or more "
            "'slots'",
        ),
        ({}, {"strategy": {"kind": "asha"}}, "strategy: asha goes on with ended trials"),
        ({}, {"pruner": {"kind": "median"}}, "pruner: it compares trials that share a job"),
        ({}, {"checkpoint": {"best": {"metric": "val_loss"}}}, "checkpoint: 'best' can't be combined"),
        ({}, {"checkpoint": {"url": "file:///mnt/backup"}}, "checkpoint: 'url' can't be combined"),
    ],
)
def test_what_can_not_be_combined_is_said_in_one_sentence(
    evaluator: dict[str, Any], values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(evaluator, **values)
    assert words in str(caught.value)
