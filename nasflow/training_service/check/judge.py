"""Says what is wrong with a service or with a node, and how to mend it, in one sentence for each problem."""

import re
import sys
from dataclasses import dataclass
from importlib import metadata

from nasflow.clean_text import one_line
from nasflow.training_service.check.job import NodeReport
from nasflow.training_service.problem import Problem, problems_of

CLOCK_SECONDS = 30.0
"""Seconds that the clock of a node may differ from this machine's."""

WITHOUT_LOG = (
    "it has no log: let nodes write training_service.storage, or work_dir where they share it, and start a Python "
    "there that has nasflow"
)
"""What to do about a job that ended on its node and has no log."""

_FREE_BYTES = 500 * 10**6
_OLD_PYTHON = (
    "the Python there is older than 3.11; name a newer one: training_service.python, or what 'python3' is in the image "
    "or on the node"
)
# What services, storages and programs say, and what to do about it; the first that fits counts.
_ADVICE = [
    (r"certificate has expired", "renew that server's certificate, or set this machine's clock if that is wrong"),
    (r"certificate verify failed", "use the name that is in the server's certificate, and name who has signed it"),
    (r"[Uu]nknown option:? -P", _OLD_PYTHON),
    (r"No module named '?nasflow", "install the same nasflow there, or name the Python that has it"),
    (r"quota|QOS|AssocGrp|AssocMax", "free some of it, ask for a larger quota, or lower max_jobs and what a job takes"),
    (r"image can't be pulled", "push the image or correct its name, and give image_pull_secrets if its registry asks"),
    (r"Insufficient \S+/\S+", "correct gpu_resource and gpus_per_job: no node has so many free of that name"),
    (r"node\(s\) didn't match", "correct node_selector: no node has these labels"),
    (r"Requested node configuration|Invalid generic resource", "no node has that; correct gpus_per_job or options"),
    (r"Read-only file system", "mount it writable, or name another folder (work_dir) or storage"),
    (r"AccessDenied|Access ?Denied|Forbidden|Permission denied", "give the user or key of the jobs the right to write"),
    (
        r"Connection refused|Name or service not known|No route to host|timed out|does not answer|[Cc]annot connect",
        "correct its address and port, and let no firewall, VPN or proxy keep this machine from it",
    ),
]


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is ahead of this machine's: between these bounds, in seconds."""

    least: float
    most: float

    @property
    def off(self) -> bool:
        """Whether it surely differs by more than `CLOCK_SECONDS`."""
        return self.least > CLOCK_SECONDS or self.most < -CLOCK_SECONDS

    def __str__(self) -> str:
        if self.least <= 0 <= self.most:
            return "in step"
        return f"{(self.least + self.most) / 2:+.0f} s"


def advised(text: str, seen: str = "", otherwise: str = "") -> str:
    """Return a sentence that says what is wrong, in one line, with what to do about it if that is known.

    Args:
        text: what a service says.
        seen: more that tells what to do, such as a job's log.
        otherwise: what to do if that does not tell.
    """
    line = one_line(" ".join(text.split()))
    advice = next((words for pattern, words in _ADVICE if re.search(pattern, f"{text}\n{seen}")), otherwise)
    return f"{line.rstrip('.;')}; {advice}" if advice else line


def problems(where: str, report: NodeReport, clock: Clock | None, wants_gpu: bool) -> list[Problem]:
    """Return what is wrong where a job ran, errors first.

    Args:
        where: the service or slot, for the sentences.
        report: what the job found.
        clock: how its clock goes; None if that is not known.
        wants_gpu: whether jobs there have a GPU.
    """
    errors = [*_torch_errors(report, wants_gpu), *_clock_errors(clock)]
    if report.free < _FREE_BYTES:
        errors.append(
            f"the disk with the jobs' files has {report.free / 1e6:.0f} MB free; make room, or name a folder elsewhere"
        )
    here = metadata.version("nasflow")
    if report.nasflow not in (None, here):
        errors.append(f"nasflow is {report.nasflow} there and {here} here; install the same version")
    return problems_of(where, errors, _warnings(report))


def _torch_errors(report: NodeReport, wants_gpu: bool) -> list[str]:
    if report.torch is None:
        return [f"torch can't be imported there ({one_line(report.torch_error)}); install it in that Python"]
    if wants_gpu and not report.gpus:
        return [
            f"jobs are to have a GPU, and torch {report.torch} sees none there; install a build for CUDA, mend the "
            "driver, or give the container its GPUs"
        ]
    return []


def _clock_errors(clock: Clock | None) -> list[str]:
    if clock is None or not clock.off:
        return []
    way, seconds = ("ahead of", clock.least) if clock.least > 0 else ("behind", -clock.most)
    return [f"its clock is at least {seconds:.0f} s {way} this machine's; set up NTP on both"]


def _warnings(report: NodeReport) -> list[str]:
    found = []
    ours, theirs = f"{sys.version_info.major}.{sys.version_info.minor}", ".".join(report.python.split(".")[:2])
    if ours != theirs:
        found.append(f"Python is {theirs} there and {ours} here; code may behave differently: use one version")
    torch = metadata.version("torch").partition("+")[0]
    if report.torch is not None and report.torch.partition("+")[0] != torch:
        found.append(f"torch is {report.torch} there and {torch} here; install the same version, for the same results")
    return found
