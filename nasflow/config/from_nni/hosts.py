"""NNI's `local` and `remote`: this machine, and hosts reached by SSH."""

import re
from typing import Any

from nasflow.config.from_nni.entries import Entries
from nasflow.config.from_nni.request import Request, Section

_PER_GPU = ("maxTrialNumberPerGpu", "maxTrialNumPerGpu")
_SLOTS = (
    "each GPU of a host, or half its cores, is a slot that trains up to merge.max_members trials; `hosts.slots` and "
    "`hosts.gpu_indices` limit them"
)
_GPU_SLOTS = (
    "each GPU that is named has slots_per_gpu slots, and each of these trains up to merge.max_members trials at a time"
)


def local(request: Request, section: Section) -> None:
    """Fill a section of kind local."""
    service, gpus = request.service, request.gpus_of_a_trial()
    key, indices = service.key("gpuIndices"), service.indices("gpuIndices")
    per_gpu, active = service.count(*_PER_GPU), service.flag("useActiveGpu")
    if not gpus and not indices:
        section.put("trialConcurrency", request.concurrency or None, "slots")
        return
    if gpus == 0:
        service.notes.add(key, "trials ask for no GPU, so the CPU is used")
        section.put("trialConcurrency", request.concurrency or None, "slots")
        return
    if not indices:
        service.notes.add(key, "nasflow uses the GPUs that are named; [0] is printed, add the others")
    slots = len(indices or [0]) * (per_gpu or 1)
    if request.concurrency and request.concurrency != slots:
        service.notes.add("trialConcurrency", f"{_GPU_SLOTS}; {slots} are printed, not {request.concurrency}")
    section.put(key, indices or [0], "gpus")
    section.put(key, per_gpu or None, "slots_per_gpu")
    section.put(key, active, "use_active_gpu")


def remote(request: Request, section: Section) -> None:
    """Fill a section of kind ssh."""
    machines = request.service.sections("machineList") or request.machines
    gpus = request.gpus_of_a_trial()
    slots = None
    if gpus == 0 and machines:  # hosts with GPUs would use them
        slots = max(1, -(-(request.concurrency or 1) // len(machines)))
    elif request.concurrency:
        request.service.notes.add("trialConcurrency", _SLOTS)
    if not machines:
        request.service.notes.add(request.service.key("machineList"), "there are no machines; name the hosts")
    section.put("machineList", [_host(machine, slots) for machine in machines], "hosts")


def _host(machine: Entries, slots: int | None) -> dict[str, Any]:
    name = machine.text("host", "ip") or ""
    suffix = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")[:60]
    python = machine.text("pythonPath")
    indices = machine.indices("gpuIndices")
    values = {
        "host": name,
        "port": machine.count("port"),
        "user": machine.text("user", "username"),
        "key_file": machine.text("sshKeyFile", "sshKeyPath"),
        "passphrase": machine.secret(f"SSH_PASSPHRASE_{suffix}", "sshPassphrase", "sshKeyPassphrase", "passphrase"),
        "password": machine.secret(f"SSH_PASSWORD_{suffix}", "password", "passwd"),
        "python": f"{python.rstrip('/')}/python" if python else None,
        "env_setup": machine.text("preCommand"),
        "slots": slots,
        "gpu_indices": None if slots else indices,
        "max_trials_per_gpu": machine.count(*_PER_GPU) or None,
        "use_active_gpu": machine.flag("useActiveGpu"),
    }
    machine.rest()
    return {key: value for key, value in values.items() if value is not None}
