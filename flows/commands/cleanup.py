"""`nasflow cleanup`: stops what a study left running, on this machine and on its hosts."""

from nasflow.config.search import SearchConfig
from nasflow.study.lease import Lease
from nasflow.study.study import Study

from ..purge import end_jobs
from ..server.secrets import use_prefect_blocks
from .console import console


def clean_up(config: SearchConfig, take_over: bool) -> None:
    """Stop a study's jobs and workers. Its results are kept, and it can be resumed.

    Raises:
        UserError: another controller runs the study, or its training service can't be made.
    """
    use_prefect_blocks()
    lease = Lease(take_over)
    study = Study.open(config, lease)
    try:
        with lease.kept(lambda: None):
            end_jobs(config)
    finally:
        study.close()
    console().print(f"study '{config.name}': its processes are stopped; `nasflow run` with its config resumes it")
