"""Configs of NNI experiments, for each of its training services, become search configs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nasflow.config.from_nni.experiment import Translation, from_nni, translate
from nasflow.config.from_nni.services import SERVICES, kinds
from nasflow.config.reading.yaml_file import read_yaml
from nasflow.config.search import SearchConfig, parse_config
from nasflow.errors import ConfigError

SAMPLES = Path(__file__).parent / "samples"
KINDS = {
    "local": "local",
    "local-v1": "local",
    "remote": "ssh",
    "remote-v1": "ssh",
    "openpai": "openpai",
    "pai-v1": "openpai",
    "adl": "adaptdl",
    "kubeflow": "kubeflow",
    "frameworkcontroller": "frameworkcontroller",
    "aml": "azureml",
    "dlc": "dlc",
    "dlts": "dlts",
}
CLUSTER = {"kind", "max_jobs", "cpus_per_job", "gpus_per_job", "memory_gb", "image", "storage"}
PODS = CLUSTER | {"namespace", "service_account", "image_pull_secrets", "volumes", "volume_mounts"}
FIELDS = {
    **dict.fromkeys(("kubernetes", "kubeflow", "frameworkcontroller", "adaptdl"), PODS),
    "openpai": CLUSTER | {"url", "user", "token", "virtual_cluster", "extra"},
    "azureml": CLUSTER | {"subscription_id", "resource_group", "workspace_name", "compute_target"},
    "dlc": CLUSTER | {"region", "workspace_id", "ecs_spec", "extra", "access_key_id", "access_key_secret"},
    "dlts": CLUSTER | {"url", "cluster", "team", "email", "password", "gpu_type"},
}


def service(name: str, known: dict[str, Any] | None = None) -> tuple[dict[str, Any], Translation]:
    """The printed section of a sample's training service, with these kinds in place of this version's."""
    path = SAMPLES / f"{name}.yml"
    translation = translate(read_yaml(path), path, known or FIELDS)
    return yaml.safe_load(translation.text)["training_service"], translation


def test_there_is_a_sample_of_each_service():
    assert {path.stem.removesuffix("-v1") for path in SAMPLES.glob("*.yml")} == {*SERVICES, "hybrid", "pai"}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_is_printed_is_accepted(name):
    translation = from_nni(SAMPLES / f"{name}.yml")
    config = parse_config(yaml.safe_load(translation.text))
    assert translation.error is None
    lacking = [note for note in translation.notes if f"no training service of kind {KINDS[name]};" in note]
    assert len(lacking) == (KINDS[name] not in kinds())
    assert config.training_service.kind == ("local" if lacking else KINDS[name])
    assert config.name == "mnist"
    assert config.space.target == "space.py:build"


@pytest.mark.parametrize("name", sorted({*KINDS, "hybrid", "hybrid-v1"}))
def test_each_documented_key_is_known(name):
    path = SAMPLES / f"{name}.yml"
    known = {kind: FIELDS.get(kind, set()) | section for kind, section in (FIELDS | kinds()).items()}
    notes = translate(read_yaml(path), path, known).notes
    assert [note for note in notes if note.endswith("left out")] == []


@pytest.mark.parametrize("name", sorted({*KINDS, "hybrid", "hybrid-v1"}))
def test_secrets_are_printed_nowhere(name):
    text = (SAMPLES / f"{name}.yml").read_text()
    _, translation = service(name, FIELDS | {"local": CLUSTER, "ssh": {"hosts", "storage"}})
    assert "SECRET-" not in translation.text + "".join(translation.notes) + str(translation.error)
    variables = translation.text.count("env: ")
    secrets = text.count("SECRET-") - text.count("passWord:") - (name == "hybrid")  # SSH hosts need no storage
    assert variables == secrets
    told = [note for note in translation.notes if "set the environment variable" in note]
    assert len(told) >= secrets


def test_an_experiment_becomes_a_search():
    assert yaml.safe_load(from_nni(SAMPLES / "local.yml").text) == {
        "name": "mnist",
        "space": {"target": "space.py:build"},
        "evaluator": {
            "kind": "classification",
            "data": {"target": "data.py:data", "params": {"batch_size": {"pick": [16, 32, 64]}}},
            "optimizer": {"lr": {"float": [0.0001, 0.1], "log": True}},
        },
        "objectives": [{"metric": "val_accuracy", "direction": "maximize"}],
        "strategy": {"kind": "tpe"},
        "budget": {"rounds": 3, "trials_per_round": 16, "trials": 40, "hours": 12.0, "on_timeout": "stop"},
        "pruner": {"kind": "median", "warmup_epochs": 3},
        "limits": {"trial": "30m"},
        "training_service": {"kind": "local", "gpus": [0, 1], "slots_per_gpu": 2, "use_active_gpu": False},
        "seed": 7,
    }


@pytest.mark.parametrize(
    ("tuner", "metric", "direction"),
    [
        *(("TPE", "val_loss", "minimize"), ("Anneal", "val_loss", "minimize")),
        *(("Evolution", "val_accuracy", "maximize"), ("Random", "val_accuracy", "maximize")),
    ],
)
def test_without_a_mode_it_is_the_tuners_default(tuner, metric, direction):
    values = {"trainingService": {"platform": "local"}, "tuner": {"name": tuner}}
    translation = translate(values, Path("any.yml"), kinds())
    assert yaml.safe_load(translation.text)["objectives"] == [{"metric": metric, "direction": direction}]
    said = f"tuner.classArgs.optimize_mode: it is not given; {direction} is used: check `objectives`"
    assert said in translation.notes
    for mode, name in (("minimize", "val_loss"), ("maximize", "val_accuracy")):
        values["tuner"]["classArgs"] = {"optimize_mode": mode}
        translation = translate(values, Path("any.yml"), kinds())
        assert yaml.safe_load(translation.text)["objectives"] == [{"metric": name, "direction": mode}]
        assert not any("optimize_mode" in note for note in translation.notes)
    values["tuner"]["classArgs"] = {"optimize_mode": "min"}
    translation = translate(values, Path("any.yml"), kinds())
    assert yaml.safe_load(translation.text)["objectives"] == [{"metric": metric, "direction": direction}]
    said = f"should be minimize or maximize; {direction} is used: check `objectives`"
    assert f"tuner.classArgs.optimize_mode: {said}" in translation.notes


def test_a_file_is_read_as_nni_reads_it(tmp_path):
    """As YAML 1.1; and what is printed is read as it is meant."""
    path = tmp_path / "x.yml"
    path.write_text(
        "experimentName: 08\nmaxExperimentDuration: 4:00:00\nmaxTrialNumber: 010\n"
        "trainingService: {platform: local, useActiveGpu: yes, gpuIndices: 0}\n"
    )
    printed = tmp_path / "search.yaml"
    printed.write_text(from_nni(path).text)
    found = read_yaml(printed)
    assert (found["name"], found["budget"]["hours"], found["budget"]["trials"]) == ("08", 4.0, 8)
    assert found["training_service"]["use_active_gpu"] is True


def test_hosts_of_version_2_and_of_version_1():
    found, _ = service("remote", {"ssh": {"hosts"}})
    assert found["hosts"] == [
        {
            "host": "10.0.0.1",
            "port": 2222,
            "user": "ada",
            "key_file": "~/.ssh/id_lab",
            "passphrase": {"env": "SSH_PASSPHRASE_10_0_0_1"},
            "python": "/opt/venv/bin/python",
            "slots": 2,
            "max_trials_per_gpu": 1,
            "use_active_gpu": False,
        },
        {"host": "gpu-2.lab", "user": "ada", "password": {"env": "SSH_PASSWORD_GPU_2_LAB"}, "slots": 2},
    ]
    found, translation = service("remote-v1", {"ssh": {"hosts"}})
    assert found["hosts"][0] == {
        "host": "10.0.0.1",
        "port": 22,
        "user": "ada",
        "password": {"env": "SSH_PASSWORD_10_0_0_1"},
        "env_setup": "source ~/venv/bin/activate",
        "gpu_indices": [0],
        "max_trials_per_gpu": 2,
    }
    assert yaml.safe_load(translation.text)["base_dir"] == str((SAMPLES / "../code").resolve())


@pytest.mark.parametrize(("name", "mount"), [("kubeflow", "/mnt/nasflow"), ("adl", "/mnt/nfs")])
def test_kubernetes_mounts_the_export(name, mount):
    found, translation = service(name)
    assert found["volumes"] == [{"name": "nasflow", "nfs": {"server": "nfs.example.com", "path": "/export"}}]
    assert found["volume_mounts"] == [{"name": "nasflow", "mountPath": mount}]
    assert (found["namespace"], found["max_jobs"], found["gpus_per_job"]) == ("research", 2, 1)
    assert (found["cpus_per_job"], found["memory_gb"]) == (2, 4.0)
    assert yaml.safe_load(translation.text)["work_dir"] == f"{mount}/nasflow-runs"


def test_roles_of_a_job():
    found, translation = service("frameworkcontroller")
    assert (found["service_account"], found["memory_gb"]) == ("framework", 8.0)
    assert any("one pod, not several replicas" in note for note in translation.notes)


def test_hosted_services():
    found, _ = service("pai-v1")
    assert found == {
        "kind": "openpai",
        "url": "https://pai.example.com/rest-server",
        "user": "ada",
        "virtual_cluster": "default",
        "token": {"env": "OPENPAI_TOKEN"},
        "max_jobs": 1,
        "gpus_per_job": 1,
        "cpus_per_job": 4,
        "memory_gb": 8.0,
        "image": "example.com/nni:latest",
        "extra": {"extras": {"storages": [{"name": "confignfs-data"}]}},
        "storage": {"local": "/mnt/nfs", "remote": "/data/nfs"},
    }
    found, _ = service("dlc")
    assert found["extra"] == {"DataSources": [{"DataSourceId": "d-nas"}, {"DataSourceId": "d-oss"}]}
    assert found["storage"] == {"local": "/mnt/nas", "remote": "/mnt/data"}
    found, translation = service("aml")
    assert any("nodes have to see the search's `work_dir`" in note for note in translation.notes)
    assert (found["subscription_id"][-3:], found["compute_target"]) == ("000", "gpu-cluster")
    found, _ = service("dlts")
    assert (found["url"], found["gpu_type"]) == ("https://dlts.example.com/", "V100")


def test_several_services():
    """As a list where this version takes one; else the first."""
    path = SAMPLES / "hybrid.yml"
    translation = from_nni(path)
    assert translation.error is None
    printed = yaml.safe_load(translation.text)
    assert isinstance(parse_config(printed), SearchConfig)
    first = isinstance(printed["training_service"], dict)
    assert any("the first of them is printed" in note for note in translation.notes) == first


def test_each_of_several_services_has_what_the_trial_asks_for():
    values = read_yaml(SAMPLES / "hybrid-v1.yml")
    printed = yaml.safe_load(translate(values, SAMPLES / "hybrid-v1.yml", kinds()).text)
    local, remote = printed["training_service"]
    assert (local["slots"], [host["slots"] for host in remote["hosts"]]) == (2, [2])
    values["trial"]["gpuNum"], values["trial"]["odd"] = 1, 1
    translation = translate(values, SAMPLES / "hybrid-v1.yml", kinds())
    local, remote = yaml.safe_load(translation.text)["training_service"]
    assert local["gpus"] == [0]
    assert "slots" not in remote["hosts"][0]
    assert [note for note in translation.notes if note.startswith("trial.gpuNum")] == []
    assert any(note.startswith("trial.odd: there is nothing of the kind") for note in translation.notes)


@pytest.mark.parametrize(("concurrency", "per_gpu", "noted"), [(1, None, True), (4, None, False), (8, 2, False)])
def test_a_concurrency_that_gpus_of_this_machine_do_not_have_is_noted(concurrency, per_gpu, noted):
    local = {"platform": "local", "gpuIndices": [0, 1, 2, 3]} | ({} if per_gpu is None else {"maxTrialNumberPerGpu": 2})
    values = {"trainingService": local, "trialConcurrency": concurrency, "trialGpuNumber": 1}
    notes = translate(values, Path("any.yml"), kinds()).notes
    assert [note.endswith("; 4 are printed, not 1") for note in notes if note.startswith("trialConc")] == [True] * noted


def test_shared_storage_of_a_cluster():
    values = read_yaml(SAMPLES / "hybrid.yml") | {"trainingService": {"platform": "aml"}}
    printed = yaml.safe_load(translate(values, SAMPLES / "hybrid.yml", FIELDS).text)
    assert printed["training_service"]["storage"] == {
        "url": "abfs://experiments/nasflow",
        "options": {"account_name": "lab", "account_key": {"env": "AZURE_STORAGE_KEY"}},
    }
    values["sharedStorage"] = {
        "storageType": "NFS",
        "nfsServer": "10.0.0.5",
        "exportedDirectory": "/export",
        "localMountPoint": "/mnt/here",
        "remoteMountPoint": "/mnt/there",
    }
    printed = yaml.safe_load(translate(values, SAMPLES / "hybrid.yml", FIELDS).text)
    assert printed["training_service"]["storage"] == {"local": "/mnt/here", "remote": "/mnt/there"}
    assert printed["work_dir"] == "/mnt/here/nasflow-runs"


def test_a_search_space_in_place():
    values = {
        "trainingService": {"platform": "local"},
        "search_space": {
            "a b": {"_type": "choice", "_value": ["x\n# y", 1]},
            "width": {"_type": "uniform", "_value": [1, 2]},
            "odd": {"_type": "qloguniform", "_value": [1, 2, 1]},
            "nested": {"_type": "choice", "_value": [{"_name": "a"}]},
            "wrong": 5,
            "huge": {"_type": "quniform", "_value": [0, float("inf"), 1]},
        },
    }
    translation = translate(values, Path("any.yml"), kinds())
    assert r"#     value_1 = pick('a b', ['x\n# y', 1])" in translation.text
    assert "#     value_2 = pick.float('width', 1, 2)" in translation.text
    noted = {note.partition(":")[0] for note in translation.notes}
    assert {f"search_space.{label}" for label in ("odd", "nested", "wrong", "huge")} <= noted
    assert yaml.safe_load(translation.text)["name"] == "any"


def test_a_search_space_in_json_that_is_indented_by_tabs(tmp_path):
    (tmp_path / "space.json").write_text('{\n\t"width": {\n\t\t"_type": "choice", "_value": [16, 32]\n\t}\n}\n')
    values = {"trainingService": {"platform": "local"}, "searchSpaceFile": "space.json"}
    assert "pick('width', [16, 32])" in translate(values, tmp_path / "any.yml", kinds()).text
    (tmp_path / "space.json").write_text('{\n\t"width": \n')
    (note,) = [n for n in translate(values, tmp_path / "any.yml", kinds()).notes if n.startswith("searchSpaceFile")]
    assert "not valid YAML: while scanning" in note and "in line 2" in note


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        ("loguniform", [0, 1], "loguniform: its _value should be [low, high] with 0 < low < high; it is left out"),
        ("uniform", [5, 5], "uniform: its _value should be [low, high] with low < high; it is left out"),
        ("uniform", ["1", "2"], "uniform: its _value should be [low, high] with low < high; it is left out"),
        ("quniform", [1, 2], "quniform: its _value should be [low, high, step]"),
        ("unifrom", [1, 2], "an unknown _type"),
    ],
)
def test_a_range_that_can_not_be_used_is_noted(kind, given, says):
    values = {"trainingService": {"platform": "local"}, "search_space": {"n": {"_type": kind, "_value": given}}}
    notes = translate(values, Path("any.yml"), kinds()).notes
    assert any(note.startswith(f"search_space.n: {says}") for note in notes)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ([16, 128, 16], "pick.int('n', 16, 128, step=16)"),
        ([2, 10, 5], "pick('n', [2, 5, 10])"),
        ([16, 256, 32], "pick('n', [16, 32, 64, 96, 128, 160, 192, 224, 256])"),
        ([1, 11, 2.5], "pick('n', [1, 2.5, 5.0, 7.5, 10.0])"),
        ([0.1, 0.5, 0.1], "pick('n', [0.1, 0.2, 0.3, 0.4, 0.5])"),
    ],
)
def test_quniform_gives_what_nni_draws(given, line):
    """`clip(round(uniform(low, high) / q) * q, low, high)`, as NNI's documentation says."""
    values = {"trainingService": {"platform": "local"}, "search_space": {"n": {"_type": "quniform", "_value": given}}}
    assert line in translate(values, Path("any.yml"), kinds()).text
    low, high, step = given
    uniform = [low + (high - low) * place / 10_000 for place in range(10_001)]
    drawn = {min(max(round(number / step) * step, low), high) for number in uniform}
    written = line.partition("(")[2]
    if written.startswith("'n', ["):
        assert {round(number, 9) for number in drawn} == {round(float(n), 9) for n in written[6:-2].split(",")}


@pytest.mark.parametrize(
    "values",
    [
        {"trainingService": None},
        {"trainingService": []},
        {"trainingService": "local"},
        {"trainingService": {"platform": ["local"]}},
        {"trainingService": {"platform": "local", "gpuIndices": "a;b", "maxTrialNumberPerGpu": -1}},
        {"trainingService": {"platform": "remote", "machineList": [None, 5]}},
        {"trainingServicePlatform": {"local": 1}, "trial": [], "localConfig": 3},
        {"trainingServicePlatform": "hybrid", "hybridConfig": []},
        {"trainingService": {"platform": "local"}, "tuner": 7, "assessor": [], "maxTrialNumber": 1e9, 5: {}},
        {"trainingService": {"platform": "local"}, "tuner": {"name": {}}, "maxExperimentDuration": "soon"},
        {"trainingService": {"platform": "local"}, "experimentName": "\x1b[31m", "\x1b[32m": 1, "searchSpace": [1]},
        {"trainingService": {"platform": "local"}, "searchSpaceFile": "/nowhere", "searchSpace": {"a": {}}},
        {"trainingService": {"platform": "kubeflow", "storage": 5, "worker": [1]}},
        {"trainingService": {"platform": "local"}, "trialCodeDirectory": "\udbff\udfff"},
        {"trainingService": {"platform": "local"}, "trialCodeDirectory": "~nobody-of-that-name/x"},
        {"trainingService": {"platform": "remote", "machineList": {"host": "\u2028\udce9"}}},
    ],
)
def test_odd_values_are_noted(values):
    for known in (kinds(), FIELDS | kinds()):
        translation = translate(values, Path("odd.yml"), known)
        assert isinstance(yaml.safe_load(translation.text), dict)
        assert all(note.isprintable() for note in translation.notes)
        assert translation.text.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "content", ["a: 1", "[1]", "", "trainingService: !!python/object:os.system {}", "a: [", "\x00"]
)
def test_a_file_that_is_no_nni_config_is_refused(tmp_path, content):
    (tmp_path / "x.yml").write_text(content)
    with pytest.raises(ConfigError, match=r"x\.yml"):
        from_nni(tmp_path / "x.yml")


def test_aliases_do_not_make_it_large(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (tmp_path / "x.yml").write_text("\n".join([*lines, "trainingService: {platform: local}"]))
    with pytest.raises(ConfigError, match=r"x\.yml"):
        from_nni(tmp_path / "x.yml")
