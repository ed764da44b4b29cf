"""`nasflow hosts check`: whether the hosts of the SSH service can run jobs, and what to do where they can't."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nasflow.config.search import SearchConfig
from nasflow.config.services import SshHostConfig, SshServiceConfig
from nasflow.errors import UserError
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.probe import HostGpu, HostReport, Problem, probe, problems

from ..server.client import set_up_prefect
from ..server.secrets import use_prefect_blocks

_AT_A_TIME = 32
_COLUMNS = ("host", "reachable", "key accepted", "Python", "torch", "GPUs, and who uses them", "disk free", "clock")
_UNKNOWN = "-"


@dataclass(frozen=True)
class CheckedHost:
    """What was found out about a host.

    Attributes:
        reachable: an sshd answers there; None if it was not tried.
        key_accepted: we know the host, and it lets us in; None if it was not tried.
        report: what there is, None if it could not be looked at.
        problems: errors first.
    """

    name: str
    reachable: bool | None
    key_accepted: bool | None
    report: HostReport | None
    problems: list[Problem]

    @property
    def in_order(self) -> bool:
        """It can run jobs."""
        return not any(problem.level == "error" for problem in self.problems)


def check_hosts(config: SearchConfig) -> list[CheckedHost]:
    """Look at all hosts at once; nothing is left on any.

    Raises:
        UserError: the config's training service is not reached by SSH.
    """
    service = config.training_service
    if not isinstance(service, SshServiceConfig):
        raise UserError(f"training_service.kind: it is '{service.kind}'; only hosts of the kind 'ssh' can be checked")
    set_up_prefect(verbose=False)
    use_prefect_blocks()
    with ThreadPoolExecutor(min(_AT_A_TIME, len(service.hosts))) as pool:
        return list(pool.map(lambda host: _check(host, service), service.hosts))


def hosts_json(hosts: list[CheckedHost]) -> list[dict[str, Any]]:
    """The same for a program."""
    return [
        {
            "host": host.name,
            "in_order": host.in_order,
            "reachable": host.reachable,
            "key_accepted": host.key_accepted,
            "report": host.report.model_dump() if host.report else None,
            "problems": [{"level": problem.level, "text": problem.text} for problem in host.problems],
        }
        for host in hosts
    ]


def hosts_table(hosts: list[CheckedHost]) -> Table:
    """A row a host."""
    table = Table(*_COLUMNS, title="hosts")
    for host in hosts:
        style = "" if host.in_order else "red"
        table.add_row(escape(host.name), _yes(host.reachable), _yes(host.key_accepted), *_cells(host), style=style)
    return table


def hosts_advice(hosts: list[CheckedHost]) -> list[Text]:
    """A line a problem, with what to do, and one that sums up."""
    styles = {"error": "red", "warning": "yellow"}
    good = sum(host.in_order for host in hosts)
    return [
        *(
            Text(f"{problem.level}: {problem.text}", style=styles[problem.level])
            for host in hosts
            for problem in host.problems
        ),
        Text(f"{good} of {len(hosts)} hosts can run jobs"),
    ]


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
    """Those of the columns from `Python` on."""
    report = host.report
    if report is None or report.too_old:
        python = escape(report.python) if report else _UNKNOWN
        return [python, *[_UNKNOWN] * (len(_COLUMNS) - 4)]
    torch = report.versions.get("torch") or "none"
    gpus = "\n".join(map(_gpu, report.gpus)) or f"none; CPU cores: {report.cpus}"
    in_step = abs(report.clock_offset) <= max(1.0, report.clock_error)
    clock = "in step" if in_step else f"{report.clock_offset:+.0f} s"
    return [escape(cell) for cell in (report.python, torch, gpus, f"{report.free / 1e9:.1f} GB", clock)]


def _gpu(gpu: HostGpu) -> str:
    users = ", ".join(gpu.users) or "free"
    return f"{gpu.index}: {gpu.name}, {gpu.memory_used} of {gpu.memory_total}: {users}"


def _yes(answer: bool | None) -> str:
    return _UNKNOWN if answer is None else "yes" if answer else "no"
