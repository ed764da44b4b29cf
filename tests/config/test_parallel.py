"""`evaluator.parallel` in a config: what it sets, and what can't be combined with it."""

from typing import Any

import pytest

from nasflow.config.devices import sections_of
from nasflow.config.search import SearchConfig, parse_config
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ConfigError
from nasflow.training_service.local.slots import gpu_slots, slot_environments

LOCAL = {"kind": "local", "slots": 4}
HOSTS = {"kind": "ssh", "hosts": [{"host": "a"}, {"host": "b", "gpu_indices": [0, 1]}]}


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


def test_merged_trials_are_spread_as_on_the_service_that_says_how() -> None:
    evaluator = {"parallel": {"devices": 2, "min_parameters": 1000}}
    for services in ([LOCAL, {"kind": "slurm"}], [{"kind": "slurm"}, LOCAL]):
        assert config(evaluator, training_service=services).devices_of_job == 2


@pytest.mark.parametrize(
    ("parallel", "gpus"), [({"devices": 1, "nodes": 3}, 0), ({"devices": 4, "nodes": 2}, 4), ({"devices": 2}, 2)]
)
def test_several_machines_of_a_cluster(parallel: dict[str, Any], gpus: int) -> None:
    shared = {"local": "/mnt/nas", "remote": "/nas"}
    service = {"kind": "slurm", "gpus_per_job": gpus, "storage": shared}
    parsed = config({"parallel": parallel}, training_service=service)
    assert parsed.evaluator.parallel is not None
    assert parsed.evaluator.parallel.ranks == parallel["devices"] * parallel.get("nodes", 1)
    assert not parsed.merge.enabled
    again = parse_config(parsed.model_dump(mode="json"))
    assert again == parsed
    for read in (parsed, again):
        assert isinstance(read.training_service, SlurmServiceConfig)
        assert read.training_service.most_nodes == parallel.get("nodes", 1)


@pytest.mark.parametrize(
    "service",
    [
        LOCAL,
        HOSTS,
        {"kind": "slurm", "storage": {"url": "s3://bucket/folder"}},
        {"kind": "kubernetes", "image": "one", "gpus_per_job": 2},
        {"kind": "ray", "gpus_per_job": 2},
        {"kind": "dask"},
        {"kind": "prefect", "work_pool": "gpus", "gpus_per_job": 2},
        [LOCAL, {**HOSTS, "devices_per_job": 2}],
        [{"kind": "slurm", "gpus_per_job": 2}, HOSTS],
        [LOCAL, {"kind": "slurm"}],
        [{"kind": "dask"}, LOCAL],
        [LOCAL, {"kind": "custom", "target": "own.py:Service"}],
    ],
    ids=str,
)
@pytest.mark.parametrize("min_parameters", [0, 1000])
def test_several_devices_of_one_machine_on_any_service(service: Any, min_parameters: int) -> None:
    parsed = config({"parallel": {"devices": 2, "min_parameters": min_parameters}}, training_service=service)
    assert parse_config(parsed.model_dump(mode="json")) == parsed
    of_each = sections_of(parsed.training_service)
    assert all(section.devices_per_job == 2 for section in of_each if section.kind in ("local", "ssh"))


@pytest.mark.parametrize(
    ("service", "devices"),
    [
        (LOCAL, 1),
        ({**HOSTS, "devices_per_job": 2}, 2),
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


def test_several_ssh_hosts() -> None:
    parsed = config({"parallel": {"devices": 2, "nodes": 2}}, training_service=HOSTS)
    assert isinstance(parsed.training_service, SshServiceConfig)
    assert parsed.training_service.devices_per_job == 2
    assert parse_config(parsed.model_dump(mode="json")) == parsed


@pytest.mark.parametrize("kind", ["kubernetes", "kubeflow", "frameworkcontroller"])
def test_several_pods(kind: str) -> None:
    service = {"kind": kind, "image": "any", "gpus_per_job": 4}
    parsed = config({"parallel": {"devices": 4, "nodes": 2}}, training_service=service)
    assert parsed.evaluator.parallel is not None and parsed.evaluator.parallel.ranks == 8
    assert parse_config(parsed.model_dump(mode="json")) == parsed


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
        (
            {"parallel": {"devices": 2, "nodes": 2}},
            {},
            "evaluator.parallel: 'nodes' is 2, and a job of training_service.kind local has one machine; leave 'nodes'",
        ),
        ({"parallel": {"devices": 2, "nodes": 0}}, {}, "evaluator.parallel.nodes: Input should be greater than or eq"),
        ({"parallel": {"devices": 1}}, {}, "evaluator.parallel: one device is what a trial has anyway; leave 'paralle"),
        ({"parallel": {"devices": 0}}, {}, "evaluator.parallel.devices: Input should be greater than or equal to 1"),
        ({"parallel": {"devices": 2, "strategy": "zero"}}, {}, "evaluator.parallel.strategy: "),
        ({"folds": 3}, {}, "'parallel' can't be combined with 'folds' yet"),
        ({"repeats": 3}, {}, "'parallel' can't be combined with 'repeats' yet"),
        ({"ema": {}}, {}, "'parallel' can't be combined with 'ema' yet"),
        ({"precision": "16-mixed"}, {}, "'parallel' can't be combined with 'precision' 16-mixed yet"),
        ({"class_weights": "balanced"}, {}, "'parallel' can't be combined with 'class_weights' yet"),
        ({"stop_after": 2}, {}, "'parallel' can't be combined with 'stop_after' yet"),
        ({"kind": "function", "target": "f:f", "data": None}, {}, "evaluator.parallel: unknown key"),
        (
            {"parallel": {"devices": 2, "nodes": 2}},
            {"training_service": [{"kind": "slurm"}, {"kind": "dask", "address": "tcp://localhost:1"}]},
            "'nodes' is 2, and a job of training_service.kind dask has one machine; leave 'nodes' out, or take SSH",
        ),
        (
            {"parallel": {"devices": 1, "nodes": 3}},
            {"training_service": HOSTS},
            "'nodes' is 3, and training_service.hosts has 2; list as many hosts, or ask for fewer",
        ),
        (
            {"parallel": {"devices": 1, "nodes": 2}},
            {"training_service": {"kind": "ssh", "hosts": [{"host": "gpu1"}, {"host": "localhost", "port": 2222}]}},
            "other hosts can't reach 'localhost:2222' by that name, as evaluator.parallel with several 'nodes' needs;",
        ),
        (
            {"parallel": {"devices": 4, "nodes": 2}},
            {"training_service": HOSTS},
            "asks for 4 devices, and training_service has 2; change evaluator.parallel.devices or",
        ),
        ({}, {"training_service": {"kind": "debug"}}, "training_service.kind debug has none; take local"),
        (
            {"parallel": {"devices": 4}},
            {"training_service": {"kind": "slurm", "gpus_per_job": 2}},
            "'gpus_per_job' is 2, and evaluator.parallel.devices 4; give as many GPUs as each machine has devices",
        ),
        (
            {"parallel": {"devices": 2, "nodes": 2}},
            {"training_service": {"kind": "slurm", "storage": {"url": "s3://bucket/folder"}}},
            "evaluator.parallel: several 'nodes' need a folder that all of them see",
        ),
        (
            {"parallel": {"devices": 1, "nodes": 2}},
            {"training_service": {"kind": "kubeflow", "image": "i", "storage": {"url": "s3://bucket/folder"}}},
            "evaluator.parallel: several 'nodes' need a folder that all of them see",
        ),
        (
            {"parallel": {"devices": 1, "nodes": 2}},
            {"training_service": {"kind": "adaptdl", "image": "i"}},
            "a job of training_service.kind adaptdl has one machine; leave 'nodes' out, or take SSH hosts, a Slurm",
        ),
        (
            {},
            {"training_service": {"kind": "ray", "gpus_per_job": 0.5}},
            "'gpus_per_job' is 0.5, and evaluator.parallel.devices 2; give as many GPUs",
        ),
        (
            {"parallel": {"devices": 5}},
            {"training_service": {"kind": "ssh", "hosts": [{"host": "a", "slots": 8}, {"host": "b", "slots": 4}]}},
            "'parallel' asks for 5 devices, and training_service has 4; change evaluator.parallel.devices or "
            "training_service.hosts",
        ),
        (
            {"parallel": None},
            {"training_service": {**HOSTS, "devices_per_job": 3}},
            "training_service: a job takes 3 devices ('devices_per_job'), and 'b' has 2; give it less, or that host "
            "more 'gpu_indices'",
        ),
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
