"""`nasflow services check`: runs a small job on each training service, and says what is wrong there."""

import signal
from pathlib import Path
from typing import Any

from rich.table import Table

from nasflow.config.job_secrets import job_secrets
from nasflow.config.search import SearchConfig
from nasflow.config.services.union import ServiceConfig, each_service
from nasflow.training_service.base import TrainingService
from nasflow.training_service.check.job import RUNNER, NodeReport
from nasflow.training_service.check.service_check import CheckedService, SlotReport, check_service

from ...pool.make import make_service
from ...server.client import set_up_prefect
from ...server.own_server import use_kept_server
from ...server.secrets import use_prefect_blocks
from .problems import problems_json

_COLUMNS = ("slot", "node", "Python", "nasflow", "torch", "GPUs", "disk free", "write, read", "clock")


def check_all(config: SearchConfig, seconds: float) -> list[CheckedService]:
    """Check the services of a config, one after the other. SIGTERM ends this as Ctrl-C does.

    Args:
        config: the search.
        seconds: that a job may wait for a place.
    """
    set_up_prefect(verbose=False)
    use_kept_server()
    use_prefect_blocks()
    secrets = job_secrets(config)

    def check(section: ServiceConfig) -> CheckedService:
        def make(root: Path) -> TrainingService:
            return make_service(section, root, config.base_dir, secrets, runner=RUNNER)

        return check_service(section, config, make, seconds)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return [check(section) for section in each_service(config.training_service)]


def services_json(services: list[CheckedService]) -> list[dict[str, Any]]:
    """Return the results for a program."""
    return [
        {
            "service": service.name,
            "in_order": service.in_order,
            "slots": [_slot_json(slot) for slot in service.slots],
            "problems": problems_json(service),
        }
        for service in services
    ]


def services_table(services: list[CheckedService]) -> Table:
    """Return a table with a row for each slot in which a job ran, and one for each service without."""
    table = Table(*_COLUMNS, title="training services")
    for service in services:
        style = "" if service.in_order else "red"
        for slot in service.slots:
            table.add_row(*_cells(slot), style=style)
        if not service.slots:
            table.add_row(service.name, *["-"] * (len(_COLUMNS) - 1), style=style)
    return table


def _slot_json(slot: SlotReport) -> dict[str, Any]:
    clock = slot.clock and {"least": slot.clock.least, "most": slot.clock.most, "off": slot.clock.off}
    return {"slot": slot.slot, "report": slot.report.model_dump(), "clock": clock}


def _cells(slot: SlotReport) -> list[str]:
    report = slot.report
    speeds = f"{report.write_speed / 1e6:.0f}, {report.read_speed / 1e6:.0f} MB/s"
    return [
        *(slot.slot, report.host, report.python, report.nasflow or "shipped", report.torch or "none"),
        *(_gpus(report), f"{report.free / 1e9:.1f} GB", speeds, str(slot.clock) if slot.clock else "-"),
    ]


def _gpus(report: NodeReport) -> str:
    driver = f", driver {report.driver}" if report.driver else ""
    return "\n".join(f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB{driver}" for gpu in report.gpus) or "none"
