"""What is said of a host that is not as it should be, by what was found there."""

import contextlib
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ssh import probe_script
from nasflow.training_service.ssh.connect.connection import Completed, SshConnection
from nasflow.training_service.ssh.probe import NEEDED, HostGpu, HostReport, probe, problems, refuse

ROOT = Path(__file__).parents[3]
CONFIG = SshServiceConfig.model_validate({"kind": "ssh", "hosts": [{"host": "somewhere"}]})
HOST = CONFIG.hosts[0]


def report(**changes: Any) -> HostReport:
    """Of a host in order but for the changes."""
    needed = {name: metadata.version(name) for name in (*NEEDED, "nasflow")}
    python = ".".join(map(str, sys.version_info[:3]))
    fields = {"python": python, "executable": "/py", "versions": needed, "free": 10**12, "user": "me"}
    return HostReport.model_validate(fields | changes)


NTP = "so times in logs do not compare; set up NTP there"
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clock_offset": 90.0, "clock_error": 0.5}, f"its clock is 90 s ahead of this machine's, {NTP}"),
        ({"clock_offset": -6.0, "clock_error": 0.1}, f"its clock is 6 s behind this machine's, {NTP}"),
        ({"python": "3.99.1"}, f"Python is 3.99 there and {OURS} here; code may behave differently: use one version"),
    ],
    ids=["ahead", "behind", "Python"],
)
def test_warnings(changes, sentence):
    found = problems(report(**changes), HOST, CONFIG)
    assert [(one.level, one.text) for one in found] == [
        ("warning", f"training_service.hosts: '{HOST.name}': {sentence}")
    ]
    refuse(report(**changes), HOST, CONFIG)


def test_clocks_are_not_compared_more_exactly_than_they_were_read():
    assert problems(report(clock_offset=9.0, clock_error=5.0), HOST, CONFIG) == []


def test_another_torch_and_one_that_can_t_use_the_gpus():
    here = metadata.version("torch")
    gpu = HostGpu(index=0, name="A100", memory_used="1 MiB", memory_total="2 MiB", users=[])
    versions = report().versions | {"torch": "1.0.0+cu92"}
    found = problems(report(versions=versions, gpus=[gpu]), HOST, CONFIG)
    assert [one.text.partition(f"'{HOST.name}': ")[2] for one in found] == [
        f"torch is 1.0.0+cu92 there and {here} here; results may differ in their last bits: install the same version "
        "everywhere",
        "the host has GPUs, but torch 1.0.0+cu92 there is built for the CPU; install a build for CUDA",
    ]
    local = report().versions | {"torch": f"{here.partition('+')[0]}+cu130"}
    assert problems(report(versions=local), HOST, CONFIG) == []  # built otherwise, the same version


def test_a_job_takes_more_gpus_than_there_are():
    gpus = [HostGpu(index=k, name="A100", memory_used="1 MiB", memory_total="2 MiB", users=[]) for k in range(2)]
    config = CONFIG.model_copy(update={"devices_per_job": 4})
    (found,) = problems(report(gpus=gpus, torch_cuda="13.0"), HOST, config)
    assert found.level == "error"
    assert found.text.partition(f"'{HOST.name}': ")[2] == (
        "it has 2 GPUs, and a job takes 4 devices (devices_per_job, or evaluator.parallel.devices); give it less, "
        "leave the host out, or set 'slots' to train on the CPU"
    )
    on_cpus = HOST.model_copy(update={"slots": 8})
    assert problems(report(gpus=gpus, torch_cuda="13.0"), on_cpus, config) == problems(report(), HOST, config) == []
    assert problems(report(gpus=gpus, torch_cuda="13.0"), HOST, CONFIG.model_copy(update={"devices_per_job": 2})) == []


def test_jobs_import_nothing_that_is_not_looked_for():
    """Of what nasflow requires, NEEDED is enough to run the worker with what it preloads, and the agent."""
    program = """
import sys, tomllib
from importlib import metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as normal

def names(lines):
    found = map(Requirement, lines)
    return {normal(one.name) for one in found if not one.marker or one.marker.evaluate({"extra": ""})}

needed = set(sys.argv[1:])
required = names(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"])
assert needed < required, needed - required
there, new = set(), needed  # what is needed, and all that comes with it
while new:
    there |= new
    new = set().union(*(names(metadata.requires(name) or []) for name in new)) - there
owners = metadata.packages_distributions()
hidden = {top for top, owned in owners.items() if set(map(normal, owned)) & (required - there)}
assert {"prefect", "sqlalchemy", "paramiko"} <= hidden

class Hide:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_distributions(self, *context):
        find = getattr(self.finder, "find_distributions", lambda *context: ())
        return [found for found in find(*context) if normal(found.name) not in required - there]
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hide, sys.meta_path)
import nasflow.training.runner, nasflow.training_service.local.worker, nasflow.training_service.ssh.agent
from nasflow.training_service.local.service import PRELOAD
for module in PRELOAD:
    __import__(module)
"""
    command = [sys.executable, "-c", program, *NEEDED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class Saying:
    """A connection to a host on which every program prints the same."""

    place = "training_service.hosts: 'somewhere'"

    def __init__(self, text: str, title: str = ""):
        self._said = f"Welcome!\n{title}{probe_script.MARK}{text}\n".encode(errors="surrogatepass")

    def run(self, *_arguments: Any, **_options: Any) -> Completed:
        return Completed(0, self._said, b"")

    def sftp(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not JSON", "Invalid JSON"),
        ("[1, 2]", "should be a mapping"),
        ('"text"', "should be a mapping"),
        ("[" * 100_000, "Invalid JSON"),
        ("9" * 10_000, "Invalid JSON"),
        ('{"executable": "/py"}', "python: this key is required"),
        ('{"python": "3", "executable": "/py"}', "python: String should match pattern"),
        ('{"python": "3.1[7", "executable": "/py"}', "python: String should match pattern"),
        ('{"python": "3333.1", "executable": "/py"}', "python: String should match pattern"),
        ('{"python": "3.11.1", "executable": "/py", "time": "noon"}', "time: Input should be a valid number"),
        ('{"python": "3.11.1", "executable": "/py", "time": NaN}', "time: Input should be a finite number"),
        ('{"python": "3.11.1", "executable": "/py", "free": 1e400}', "free: "),
        (f'{{"python": "3.11.1", "executable": "/py", "free": {"9" * 400}}}', "free: "),
        ('{"python": "3.11.1", "executable": "/py", "user": "\\ud800"}', "Invalid JSON"),
        ('{"python": "3.11.1", "executable": "/py", "gpus": [{"index": 0}]}', "gpus.0.name: this key is required"),
    ],
    ids=lambda value: value[:40],
)
def test_a_report_that_is_none(text, reason):
    with pytest.raises(ServiceError) as refused:
        refuse(probe(cast(SshConnection, Saying(text)), HOST), HOST, CONFIG)
    assert str(refused.value).startswith(f"{Saying.place}: 'python3' gave an invalid report: ")
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 1500
    assert str(refused.value).isprintable()


def test_output_of_the_login_shell_may_lack_its_last_newline():
    """As a title for the terminal does, or `echo -n` in ~/.bashrc."""
    said = Saying(report().model_dump_json(), title="\x1b]0;host\x07")
    assert probe(cast(SshConnection, said), HOST).executable == "/py"


def test_text_of_a_host_stays_in_its_line():
    error = {"full": False, "text": "no\n\x1b[31m" + "x" * 10_000}
    text = json.dumps({"python": "3.99.1", "executable": "/py", "folder_error": error, "user": "me\r"})
    with pytest.raises(ServiceError) as refused:
        refuse(probe(cast(SshConnection, Saying(text)), HOST), HOST, CONFIG)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1500


def test_the_home_of_nobody_on_the_host():
    command = [sys.executable, probe_script.__file__, "~nobodyhere/work", "[]"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = HostReport.model_validate_json(done.stdout.removeprefix(probe_script.MARK))
    with pytest.raises(
        ServiceError, match=r"work_dir ~nobodyhere/work can't be written \(there is no home of that user"
    ):
        refuse(found.model_copy(update={"versions": report().versions}), HOST, CONFIG)


def test_a_work_dir_without_file_locks(tmp_path):
    """Here `flock` is replaced before the script runs, as on Lustre that is mounted without it."""
    patch = "import fcntl\ndef refuse(*_): raise OSError(38, 'Function not implemented')\nfcntl.flock = refuse\n"
    script = patch + Path(probe_script.__file__).read_text()
    command = [sys.executable, "-c", script, str(tmp_path / "work"), "[]"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = HostReport.model_validate_json(done.stdout.removeprefix(probe_script.MARK))
    with pytest.raises(
        ServiceError,
        match=rf"the file system of work_dir {tmp_path}/work has no file locks \(Function not implemented\); mount it ",
    ):
        refuse(found.model_copy(update={"versions": report().versions}), HOST, CONFIG)
    assert list(tmp_path.iterdir()) == []
