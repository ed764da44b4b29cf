"""More sections as strangers write them: refused with the key, in one sentence, before anything is written."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import parse_config
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.errors import UserError
from nasflow.training_service.cluster.slurm_options import check_options
from nasflow.training_service.make import make_service
from tests.training_service.check.checks import SEARCH

RAY = {"kind": "ray", "address": "http://127.0.0.1:9"}
HOSTED: dict[str, dict[str, Any]] = {
    "openpai": {"url": "http://127.0.0.1:9", "user": "me", "token": "hush", "image": "i"},
    "dlts": {"url": "http://127.0.0.1:9", "team": "t", "email": "a@b", "password": "hush", "image": "i"},
    "dlc": {"region": "r", "workspace_id": "1", "access_key_id": "hush", "access_key_secret": "hush", "image": "i"},
    "azureml": {
        "subscription_id": "11111111-2222-3333-4444-555555555555",
        "resource_group": "lab",
        "workspace_name": "w-1",
        "compute_target": "gpu",
        "image": "i",
    },
}
EXTRAS: list[tuple[str, Any, str]] = [
    ("openpai", {"name": "mine"}, "'name' is nasflow's own; leave it out"),
    ("openpai", {"taskRoles": None}, "'taskRoles' should be a mapping"),
    ("openpai", {"taskRoles": {"job": ["commands"]}}, "'taskRoles.job' should be a mapping"),
    ("openpai", {"taskRoles": {"job": {"commands": ["sleep 9"]}}}, "'taskRoles.job.commands' is nasflow's own"),
    ("dlts", {"jobName": "mine"}, "'jobName' is nasflow's own"),
    ("dlts", {"team": "other"}, "'team' is nasflow's own"),
    ("dlc", {"UserCommand": "sleep 9"}, "'UserCommand' is nasflow's own"),
    ("azureml", {"command": "sleep 9"}, "'command' is nasflow's own"),
]
SLURM: list[tuple[list[str], str]] = [
    (["--job-name=mine"], "'--job-name' is nasflow's own; leave it out"),
    (["--comment", "mine", "--job-name", "x"], "'--job-name' is nasflow's own"),
    (["-Jmine"], "'-J' is nasflow's own"),
    (["--clusters=other"], "'--clusters' is nasflow's own"),
    (["-M", "other"], "'-M' is nasflow's own"),
    (["--array=1-3"], "'--array' is nasflow's own"),
    (["-a1-3"], "'-a' is nasflow's own"),
    (["--wait"], "'--wait' is nasflow's own"),
    (["-W"], "'-W' is nasflow's own"),
    (["--wrap=sleep 9"], "'--wrap' is nasflow's own"),
    (["--gres=gpu:a100:1"], "'--gres' asks for GPUs; set gpus_per_job, too"),
    (["--gres", "tmp:9,gpu:1"], "'--gres' asks for GPUs"),
    (["--gpus=1"], "'--gpus' asks for GPUs"),
    (["--gpus-per-task=a100:1"], "'--gpus-per-task' asks for GPUs"),
    (["-G1"], "'-G' asks for GPUs"),
    (["-G", "1"], "'-G' asks for GPUs"),
    (["--tres-per-task=gres/gpu:1"], "'--tres-per-task' asks for GPUs"),
]
STORAGES: list[tuple[Any, str]] = [
    ({"url": "s3://bucket/a "}, "storage.url: 's3://bucket/a ' begins or ends with a space; remove it"),
    ({"url": " s3://bucket/a"}, "storage.url: ' s3://bucket/a' begins or ends with a space; remove it"),
    ({"url": {"env": "SPACE"}}, "storage.url: 's3://bucket/a ' begins or ends with a space; remove it"),
    ({"url": "s3:bucket/a"}, "storage.url: 's3:bucket/a' is no URL"),
    ({"url": "s3://b/a", "options": {"config_kwargs": "fast"}}, "storage.options.config_kwargs: should be a mapping"),
    ({"url": "s3://b/a", "options": {"config_kwargs": None}}, "storage.options.config_kwargs: should be a mapping"),
    ({"url": "file:///a", "scratch": "scratch"}, "storage.scratch: 'scratch' is no absolute path"),
    ({"url": "file:///a", "scratch": "~/scratch"}, "storage.scratch: '~/scratch' is no absolute path"),
    ({"url": "file:///a", "scratch": "$TMPDIR"}, "storage.scratch: '$TMPDIR' is no absolute path"),
    ({"url": "file:///a", "scratch": ""}, "storage.scratch: '' is no absolute path"),
    ({"url": "file:///a", "python": ""}, "storage.python: String should have at least 1 character"),
    ({"url": "file:///a", "pyton": "python3"}, "storage.pyton: unknown key; did you mean 'python'?"),
]


def refused(folder: Path, section: Any, work_dir: str) -> str:
    """What is said of a section."""
    with pytest.raises(UserError) as error:
        config = parse_config({**SEARCH, "training_service": section, "work_dir": work_dir})
        make_service(config.training_service, config.study_dir, folder).validate()
    said = str(error.value)
    assert said.isprintable()
    assert len(said) < 600
    assert "hush" not in said
    return said


@pytest.mark.parametrize(("storage", "says"), STORAGES)
def test_a_storage(storage: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE", "s3://bucket/a ")
    assert says in refused(tmp_path, {**RAY, "storage": storage}, str(tmp_path / "runs"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "extra", "says"), EXTRAS)
def test_what_a_hosted_job_needs_can_not_be_replaced(kind: str, extra: Any, says: str, tmp_path: Path) -> None:
    """Under another name it would train, and its search would take it as lost."""
    section = {"kind": kind, **HOSTED[kind], "extra": extra}
    assert f"training_service.extra: {says}" in refused(tmp_path, section, str(tmp_path / "runs"))


@pytest.mark.parametrize(("options", "says"), SLURM)
def test_options_of_sbatch_that_nasflow_sets(options: list[str], says: str, tmp_path: Path) -> None:
    """They come last, and so would win: the search would not find its jobs, or these not their GPUs."""
    section = {"kind": "slurm", "options": options}
    assert f"training_service.options: {says}" in refused(tmp_path, section, str(tmp_path / "runs"))
    assert not list(tmp_path.iterdir())
    assert SlurmServiceConfig(options=options).options == options  # of a study on record, which can be read


@pytest.mark.parametrize(
    "section",
    [
        {"options": ["--gres=fpga:1", "--constraint=gpu", "-C", "gpu", "--wait-all-nodes=1", "--gpu-bind=none"]},
        {"options": ["--gres=tmp:9,gpu:0", "--gpus=0", "-G0", "--gpus-per-node", "a100:0", "-A", "mine"]},
        {"options": ["--tres-per-task=gres/gpu=0", "--gres=none"]},
        {"gpus_per_job": 1, "options": ["--gres=gpu:a100:1"]},
        {"env_setup": "unset CUDA_VISIBLE_DEVICES", "options": ["--gres=gpu:1"]},
    ],
)
def test_other_options_of_sbatch(section: dict[str, Any]) -> None:
    check_options(SlurmServiceConfig(**section))


def test_that_a_search_does_not_follow_slurm_to_another_cluster_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be this one's own name: sites set the variable for all of their users."""
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no 'sbatch' here" in refused(tmp_path, {"kind": "slurm"}, str(tmp_path / "runs"))
    assert caplog.text.count("SLURM_CLUSTERS ('other') does not count: jobs go to the cluster of Slurm's config") == 1


@pytest.mark.parametrize("kind", ["local", "debug", "ray"])
def test_a_work_dir_that_can_be_none(kind: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    for place in ("loop", "loop/deep", "n" * 300):
        said = refused(tmp_path, {"kind": kind}, str(tmp_path / place))
        assert said.startswith("work_dir: the study's folder ")
        assert said.endswith("; correct work_dir or name")
    assert "can't write below" in refused(tmp_path, {"kind": kind}, str(tmp_path / "file" / "runs"))
    assert {path.name for path in tmp_path.iterdir()} == {"loop", "file"}
