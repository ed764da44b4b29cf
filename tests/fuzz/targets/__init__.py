"""All targets, one a file."""

from tests.fuzz.target import Target
from tests.fuzz.targets import (
    archives,
    checkpoints,
    configs,
    event_files,
    host_probes,
    ignore_files,
    nni_configs,
    service_answers,
    urls,
)

TARGETS: tuple[Target, ...] = (
    *(configs.YAML, configs.JSON, ignore_files.TARGET, archives.TARGET, host_probes.TARGET),
    *(event_files.TARGET, checkpoints.TARGET, urls.TARGET, service_answers.TARGET, nni_configs.TARGET),
)
