"""The report of a host, as the probe prints it."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ssh import probe_script
from nasflow.training_service.ssh.connect.connection import Completed, SshConnection
from nasflow.training_service.ssh.probe import NEEDED, probe, problems, refuse
from tests.fuzz.mutate import reshape_json
from tests.fuzz.target import Target

_CONFIG = SshServiceConfig.model_validate({"hosts": [{"host": "somewhere"}]})
_GPU = {"index": 0, "name": "A100", "memory_used": "1 MiB", "memory_total": "2 MiB", "users": ["python (me, pid 7)"]}
_LOOKED = probe_script.look(".", [*NEEDED, "nasflow"])
_SEEDS = [
    json.dumps(report).encode()
    for report in (
        _LOOKED,
        {**_LOOKED, "gpus": [_GPU, _GPU | {"index": 1}], "torch_cuda": "13.0"},
        {**_LOOKED, "gpu_error": "no driver", "folder_error": {"full": True, "text": "No space left"}},
        {"python": "3.6.8", "executable": "/usr/bin/python3"},
    )
]


class _Host:
    """A connection to a host on which a program prints this. What is around the report is a login shell's."""

    place = "training_service.hosts: 'somewhere'"

    def __init__(self, report: bytes):
        self._report = report

    def run(self, *_arguments: Any, **_options: Any) -> Completed:
        return Completed(0, b"Welcome\n" + probe_script.MARK.encode() + self._report + b"\nlogout\n", b"")

    def sftp(self) -> AbstractContextManager[None]:
        return nullcontext()


def _read(data: bytes, _folder: Path) -> int:
    host = _CONFIG.hosts[0]
    report = probe(cast(SshConnection, _Host(data)), host)
    for problem in problems(report, host, _CONFIG):
        assert problem.text.isprintable(), problem.text
    json.dumps(report.model_dump(), allow_nan=False)
    refuse(report, host, _CONFIG)
    return 1


_TOKENS = (
    b"[",
    b'{"a": ',
    b'"',
    b"\\ud800",
    b"\\u0000",
    b"\n",
    b"\x1b[31m",
    b"NaN",
    b"1e999",
    b"null",
    b'"3"',
    b"nasflow-host: ",
)
TARGET = Target("host probe", _SEEDS, _read, (ServiceError,), _TOKENS, reshape_json)
