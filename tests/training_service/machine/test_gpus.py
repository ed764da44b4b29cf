"""What nvidia-smi and NVML say of GPUs, read as it is. Both stand in for the real ones."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from nasflow.errors import ServiceError
from nasflow.training_service.machine import gpus
from nasflow.training_service.machine.gpus import UNKNOWN_PID, Gpu, read_gpus
from tests.gpu_stand_ins import NO_DRIVER, NvidiaSmi, build_nvml

MIB = 2**20
_READ = """
import dataclasses, json
from nasflow.training_service.machine.gpus import read_gpus
print(json.dumps([dataclasses.asdict(gpu) for gpu in read_gpus()]))
"""


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """On the PATH, with no NVML beside it."""
    program = NvidiaSmi(tmp_path / "bin", gpus=2)
    monkeypatch.setenv("PATH", f"{program.folder}:{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    return program


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """Reads GPUs in a process that finds the NVML built with these options, and these lines."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc is there to build a stand-in for NVML")
    folder = tmp_path_factory.mktemp("nvml")

    def read(lines: list[str], *options: str, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
        library = folder / "-".join(("built", *options))
        if not library.exists():
            build_nvml(library, *options)
        (folder / "gpus").write_text("".join(f"{line}\n" for line in lines))
        marks = {"LD_LIBRARY_PATH": str(library), "NVML_STAND_IN": str(folder / "gpus"), "PATH": path}
        return subprocess.run(
            [sys.executable, "-c", _READ], env=os.environ | marks, capture_output=True, text=True, check=False
        )

    return read


def test_no_driver_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpus() == []


def test_nvidia_smi(smi):
    smi.use(1, 42, 7)
    smi.tell(1, utilisation=93)
    first, second = read_gpus()
    assert first == Gpu(
        index=0,
        uuid="GPU-00000000-7a1c-4c5e-9b1d-0123456789ab",
        name="NVIDIA H100 80GB HBM3",
        memory_total=81559 * MIB,
        memory_used=3 * MIB,
        utilisation=0,
        pids=(),
    )
    assert (second.index, second.memory_used, second.utilisation, second.pids) == (1, 1003 * MIB, 93, (7, 42))


def test_cells_that_nvidia_smi_can_not_fill(smi):
    smi.tell(0, utilisation=None, total=None, used=None)
    smi.tell(1, utilisation="[Not Supported]", pids=[None, 42, "[Unknown Error]"])
    first, second = read_gpus()
    assert (first.memory_total, first.memory_used, first.utilisation) == (None, None, None)
    assert (second.utilisation, second.pids) == (None, (UNKNOWN_PID, 42))


def test_nvidia_smi_without_a_gpu(tmp_path, smi):
    NvidiaSmi(smi.folder, gpus=0)
    assert read_gpus() == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (NO_DRIVER, 9, r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\."),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.1", 18, "mismatch;"),
        ("", 255, "exit code 255"),
        ("Unable to determine the device handle for GPU0: Unknown Error", 0, "Unable to determine"),
    ],
    ids=["no driver", "mismatch", "no words", "no table"],
)
def test_a_driver_that_nvidia_smi_can_not_ask(smi, words, code, told):
    smi.fail(words, code)
    with pytest.raises(ServiceError, match=rf"^training_service: the NVIDIA driver can't list the GPUs: .*{told}"):
        read_gpus()


def test_nvidia_smi_that_hangs_is_ended(smi, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_SMI_ANSWERS_WITHIN", 0.2)
    smi.hang(until=tmp_path / "never")
    with pytest.raises(ServiceError, match="nvidia-smi has not answered"):
        read_gpus()


def test_a_call_that_nothing_can_end_is_left_alone(smi, tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "_ANSWERS_WITHIN", 0.2)
    smi.hang(until=tmp_path / "go")
    with pytest.raises(ServiceError, match="it has not answered"):
        read_gpus()
    (tmp_path / "go").touch()


def test_nvml_goes_before_nvidia_smi(nvml, smi):
    lines = ["GPU-a;Card A;40960;1027;93;4242 17", "GPU-b;Card B;-1;-1;-1;", "GPU-c;Card C;100;0;0;0"]
    done = nvml(lines, path=os.environ["PATH"])
    first, second, third = json.loads(done.stdout)
    assert first == {
        "index": 0,
        "uuid": "GPU-a",
        "name": "Card A",
        "memory_total": 40960 * MIB,
        "memory_used": 1027 * MIB,
        "utilisation": 93,
        "pids": [17, 4242],
    }
    assert (second["memory_total"], second["memory_used"], second["utilisation"]) == (None, None, None)
    assert second["pids"] == []
    assert third["pids"] == [UNKNOWN_PID]


def test_nvml_without_a_driver(nvml, smi):
    done = nvml([], "-DINIT=9", path=os.environ["PATH"])
    assert "ServiceError: training_service: the NVIDIA driver can't list the GPUs: Driver Not Loaded" in done.stderr


def test_an_nvml_too_old_for_its_bindings_gives_way_to_nvidia_smi(nvml, smi):
    smi.use(1, 42)
    done = nvml(["GPU-a;Card A;40960;1027;93;"], "-DOLD", path=os.environ["PATH"])
    assert done.returncode == 0, done.stderr
    assert [gpu["pids"] for gpu in json.loads(done.stdout)] == [[], [42]]
