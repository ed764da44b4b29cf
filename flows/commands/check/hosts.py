"""`nasflow hosts check`: checks whether the hosts of the SSH service can run jobs, and says how to fix them."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from nasflow.config.search import SearchConfig
from nasflow.config.services.ssh import SshHostConfig, SshServiceConfig
from nasflow.config.services.union import each_service
from nasflow.errors import UserError
from nasflow.training_service.problem import Problem, in_order
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.probe import HostGpu, HostReport, probe, problems

from ...server.client import set_up_prefect
from ...server.secrets import use_prefect_blocks
from .problems import problems_json

_AT_A_TIME = 32
_COLUMNS = ("host", "reachable", "key accepted", "Python", "torch", "GPUs, and who uses them", "disk free", "clock")
_UNKNOWN = "-"


@dataclass(frozen=True)
class CheckedHost:
    """The result of checking one host.

    Attributes:
        name: the host's name.
        reachable: whether an sshd answers; None if that was not tried.
        key_accepted: whether we know the host key and the host accepts our key; None if that was not tried.
        report: facts about the host; None if they could not be read.
        problems: its problems, errors first.
    """

    name: str
    reachable: bool | None
    key_accepted: bool | None
    report: HostReport | None
    problems: list[Problem]

    @property
    def in_order(self) -> bool:
        """Whether the host can run jobs."""
        return in_order(self.problems)


def check_hosts(config: SearchConfig) -> list[CheckedHost]:
    """Check all hosts in parallel. Leaves no files on them.

    Raises:
        UserError: the config's training service is not reached by SSH.
    """
    kinds = {service.kind: service for service in each_service(config.training_service)}
    service = kinds.get("ssh")
    if not isinstance(service, SshServiceConfig):
        raise UserError(
            f"training_service.kind: it is '{', '.join(kinds)}'; only hosts of the kind 'ssh' can be checked"
        )
    set_up_prefect(verbose=False)
    use_prefect_blocks()
    with ThreadPoolExecutor(min(_AT_A_TIME, len(service.hosts))) as pool:
        return list(pool.map(lambda host: _check(host, service), service.hosts))


def hosts_json(hosts: list[CheckedHost]) -> list[dict[str, Any]]:
    """Return the results for a program."""
    return [
        {
            "host": host.name,
            "in_order": host.in_order,
            "reachable": host.reachable,
            "key_accepted": host.key_accepted,
            "report": host.report.model_dump() if host.report else None,
            "problems": problems_json(host),
        }
        for host in hosts
    ]


def hosts_table(hosts: list[CheckedHost]) -> Table:
    """Return a table with one row per host."""
    table = Table(*_COLUMNS, title="hosts")
    for host in hosts:
        style = "" if host.in_order else "red"
        table.add_row(host.name, _yes(host.reachable), _yes(host.key_accepted), *_cells(host), style=style)
    return table


def _check(host: SshHostConfig, service: SshServiceConfig) -> CheckedHost:
    reachable = accepted = report = None
    connection = SshConnection(host, service)
    try:
        connection.connect()
        reachable = accepted = True
        report = probe(connection, host)
        found = problems(report, host, service)
    except UserError as error:
        if isinstance(error, Refused):
            reachable, accepted = True, False
        elif isinstance(error, Unreachable) and not accepted:
            reachable = False
        found = [Problem("error", str(error))]
    finally:
        connection.close()
    return CheckedHost(host.name, reachable, accepted, report, found)


def _cells(host: CheckedHost) -> list[str]:
    """Return the cells of the columns from `Python` on."""
    report = host.report
    if report is None or report.too_old:
        python = report.python if report else _UNKNOWN
        return [python, *[_UNKNOWN] * (len(_COLUMNS) - 4)]
    torch = report.versions.get("torch") or "none"
    gpus = "\n".join(map(_gpu, report.gpus)) or f"none; CPU cores: {report.cpus}"
    in_step = abs(report.clock_offset) <= max(1.0, report.clock_error)
    clock = "in step" if in_step else f"{report.clock_offset:+.0f} s"
    return [report.python, torch, gpus, f"{report.free / 1e9:.1f} GB", clock]


def _gpu(gpu: HostGpu) -> str:
    users = ", ".join(gpu.users) or "free"
    return f"{gpu.index}: {gpu.name}, {gpu.memory_used} of {gpu.memory_total}: {users}"


def _yes(answer: bool | None) -> str:
    return _UNKNOWN if answer is None else "yes" if answer else "no"
