"""The slots of the local service: their names, and each one's share of the machine as environment variables."""

import os
import sys
from collections.abc import Sequence

from nasflow.config.services.local import LocalServiceConfig
from nasflow.system.cgroups import cpu_quota
from nasflow.system.gpu_share import GPU_SHARE

_ALL = {
    "PYTHONUNBUFFERED": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pyarrow starts a thread when imported; the worker forks
}
_GLIBC = {  # keep freed memory, so that allocating big tensors again causes no page faults
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
}
_GPU = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # count GPUs as nvidia-smi does
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # checking for a GPU must not initialize CUDA, because the worker forks
}


def slot_environments(config: LocalServiceConfig) -> dict[str, dict[str, str]]:
    """Return each slot's name and its worker's own environment.

    Names are as `cpu-0`, or `gpu-1.0` for the first slot of GPU 1, or `gpu-0+1.0` where a job takes two GPUs.
    """
    cores = _cores()
    if config.gpus:
        visible = {slot: ",".join(map(str, gpus)) for gpus in _gpus_of_jobs(config) for slot in _slots_of(gpus, config)}
    else:
        slots = (config.slots or max(1, cores // 2)) // config.devices_per_job
        visible = {f"cpu-{k}": "" for k in range(max(1, slots))}
    shared = job_environment(max(1, cores // len(visible)), bool(config.gpus))
    if config.gpus:
        shared[GPU_SHARE] = str(1 / config.slots_per_gpu)
    return {slot: {**shared, "CUDA_VISIBLE_DEVICES": gpu} for slot, gpu in visible.items()}


def job_environment(threads: int, gpus: bool) -> dict[str, str]:
    """Return the environment variables that let jobs with this many threads, on GPUs or not, run at full speed."""
    shared = {**_ALL, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    # Spinning threads starve each other when anything else needs a core: epochs were measured 10 times slower.
    shared["OMP_WAIT_POLICY"] = os.environ.get("OMP_WAIT_POLICY", "passive")
    if sys.platform == "linux":
        shared |= _GLIBC
    return shared | _GPU if gpus else shared


def gpu_slots(config: LocalServiceConfig) -> dict[int, list[str]]:
    """Return the slots of each GPU; empty on the CPU."""
    return {gpu: _slots_of(gpus, config) for gpus in _gpus_of_jobs(config) for gpu in gpus}


def _gpus_of_jobs(config: LocalServiceConfig) -> list[list[int]]:
    """Return the GPUs in groups of those that a job takes; a rest that is too small for a job stays unused."""
    size = config.devices_per_job
    return [config.gpus[first : first + size] for first in range(0, len(config.gpus) - size + 1, size)]


def _slots_of(gpus: Sequence[int], config: LocalServiceConfig) -> list[str]:
    return [f"gpu-{'+'.join(map(str, gpus))}.{k}" for k in range(config.slots_per_gpu)]


def _cores() -> int:
    """Return the number of cores this process may use; a container may have less of their time than there are."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min(there, cpu_quota())))
