"""Lists the NVIDIA GPUs of this machine and the processes on them, by NVML or else by `nvidia-smi`."""

import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from nasflow.errors import ServiceError

T = TypeVar("T")

UNKNOWN_PID = 0
"""Replaces the pid of a process if the driver does not report it."""

_SMI_ANSWERS_WITHIN = 15.0  # seconds; if the driver is not kept loaded, it first initializes every GPU
_ANSWERS_WITHIN = 40.0  # seconds in total; after that it hangs in the kernel and can't be killed
_GPU_FIELDS = "index,uuid,name,memory.total,memory.used,utilization.gpu"
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One GPU. A value that its driver does not report is None.

    Attributes:
        index: its number by PCI address, as counted by `nvidia-smi`, and by CUDA with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
        memory_total, memory_used: bytes.
        utilisation: percent of the last sample period in which it was computing.
        pids: the processes that compute on it, as reported by the driver: in a container these may be pids of the
            machine outside, or `UNKNOWN_PID`.
    """

    index: int
    uuid: str
    name: str
    memory_total: int | None
    memory_used: int | None
    utilisation: int | None
    pids: tuple[int, ...]


def read_gpus() -> list[Gpu]:
    """Return the GPUs by index; none if there is no NVIDIA driver. May take seconds.

    Raises:
        ServiceError: there is a driver, but it does not answer.
    """
    answer: Future[list[Gpu]] = Future()

    def read() -> None:
        try:
            answer.set_result(_read())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=read, name="read GPUs", daemon=True).start()
    try:
        return answer.result(_ANSWERS_WITHIN)
    except TimeoutError:
        raise _no_answer(f"it has not answered for {_ANSWERS_WITHIN:.0f} s") from None


def _read() -> list[Gpu]:
    by_nvml = _from_nvml()
    if by_nvml is not None:
        return by_nvml
    smi = shutil.which("nvidia-smi")
    return _from_smi(smi) if smi else []


def _from_nvml() -> list[Gpu] | None:
    """Return the GPUs; None if the NVML library is missing or older than its bindings."""
    try:
        import pynvml  # noqa: PLC0415 - a host may have nvidia-smi only
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return [_by_handle(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_FunctionNotFound):
        return None
    except pynvml.NVMLError as error:
        raise _no_answer(str(error)) from None


def _by_handle(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def value_of(ask: Callable[[Any], T]) -> T | None:
        try:
            return ask(handle)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            return None

    memory = value_of(nvml.nvmlDeviceGetMemoryInfo)
    rates = value_of(nvml.nvmlDeviceGetUtilizationRates)
    processes = value_of(nvml.nvmlDeviceGetComputeRunningProcesses_v3)
    return Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_total=None if memory is None else int(memory.total),
        memory_used=None if memory is None else int(memory.used),
        utilisation=None if rates is None else int(rates.gpu),
        pids=tuple(sorted({int(process.pid) for process in processes or ()})),
    )


def _from_smi(smi: str) -> list[Gpu]:
    rows = _ask(smi, f"--query-gpu={_GPU_FIELDS}")
    pids: dict[str, set[int]] = defaultdict(set)
    for uuid, pid in _ask(smi, "--query-compute-apps=gpu_uuid,pid") if rows else []:
        pids[uuid].add(_number(pid) or UNKNOWN_PID)
    gpus = [
        Gpu(
            index=int(index),
            uuid=uuid,
            name=name,
            memory_total=_bytes(total),
            memory_used=_bytes(used),
            utilisation=_number(utilisation),
            pids=tuple(sorted(pids[uuid])),
        )
        for index, uuid, name, total, used, utilisation in rows
    ]
    return sorted(gpus, key=lambda gpu: gpu.index)


def _ask(smi: str, query: str) -> list[list[str]]:
    """Return the cells that nvidia-smi prints, in MiB and percent."""
    command = [smi, query, "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SMI_ANSWERS_WITHIN)
    except subprocess.TimeoutExpired:
        raise _no_answer(f"nvidia-smi has not answered for {_SMI_ANSWERS_WITHIN:.0f} s") from None
    if "No devices were found" in answer.stdout:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode != 0 or any(len(row) != query.count(",") + 1 for row in rows):
        words = (answer.stderr + answer.stdout).strip().splitlines() or [f"exit code {answer.returncode}"]
        raise _no_answer(words[0])
    return rows


def _number(cell: str) -> int | None:
    """Parse a cell; None if it holds no number: `[N/A]`, `[Not Supported]`, `[Unknown Error]`."""
    return int(cell) if cell.isdecimal() else None


def _bytes(cell: str) -> int | None:
    number = _number(cell)
    return None if number is None else number * _MIB


def _no_answer(why: str) -> ServiceError:
    return ServiceError(
        f"training_service: the NVIDIA driver can't list the GPUs: {why}; "
        "run nvidia-smi there to see why, or train on the CPU"
    )
