"""What a job asks of its device is in force while it runs, and no longer; costs measured under it are not mixed up."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.merge.planning.cost_model import CostModel
from nasflow.system.gpu_share import GPU_SHARE
from nasflow.training.device.settings import device_settings
from nasflow.training.runner import run_job_file
from nasflow.training.training_job import TrainingJob
from tests.training.jobs import evaluator, make_job, sample
from tests.training.recovery.test_killed import write_job

CPU = torch.device("cpu")
DEFAULTS = ("highest", True, False, False, False)


def settings() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return (
        torch.get_float32_matmul_precision(),
        *(cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark),
        torch.are_deterministic_algorithms_enabled(),
    )


@pytest.fixture
def with_gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Torch says that it has two; the parts of their memory that are asked for."""
    asked: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a stand-in")
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *args: asked.append(args))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    return asked


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ("highest", False, False, False, False)),
        ({"matmul_precision": "high"}, ("high", True, False, False, False)),
        ({"deterministic": True}, ("highest", False, True, False, True)),
    ],
)
def test_on_a_gpu(
    options: dict[str, Any],
    found: tuple[Any, ...],
    with_gpus: list[tuple[float, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(GPU_SHARE, "0.5")
    assert settings() == DEFAULTS
    with device_settings(evaluator(**options)):
        assert settings() == found
    assert settings() == DEFAULTS
    assert with_gpus == [(0.5, 0)]
    assert f"precision 32-true, matmul_precision {found[0]}, " in capsys.readouterr().out


@pytest.mark.parametrize(("devices", "used"), [(2, 2), (3, 2)])
def test_on_several_gpus(
    devices: int, used: int, with_gpus: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that wants more than there are uses those that there are."""
    monkeypatch.setenv(GPU_SHARE, "0.25")
    with device_settings(evaluator(), devices):
        assert with_gpus == [(0.25, index) for index in range(used)]


def test_a_job_computes_as_its_evaluator_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a CPU the precision alone: there, all algorithms are deterministic."""
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(TrainingJob, "run", lambda job: seen.append(settings()))
    config = evaluator(matmul_precision="medium", deterministic=True)
    assert run_job_file(write_job(tmp_path, make_job("spaces.py:net", config, sample("spaces.py:net", config, 1)))) == 0
    assert seen == [("medium", *DEFAULTS[1:])]
    assert settings() == DEFAULTS


def test_costs_are_those_of_a_precision(tmp_path: Path) -> None:
    places = [CostModel(CPU, tmp_path).place]
    for precision in ("high", "medium"):
        with device_settings(evaluator(matmul_precision=precision)):
            places.append(CostModel(CPU, tmp_path).place)
    with torch.autocast("cpu", torch.bfloat16):
        places.append(CostModel(CPU, tmp_path).place)
    assert len(set(places)) == len(places)
    assert CostModel(CPU, tmp_path).place == places[0]
