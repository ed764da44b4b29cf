"""`nasflow cleanup`: stops what a study left running, on this machine and on its hosts."""

from nasflow.config.search import SearchConfig
from nasflow.study.folder import claim_folder
from nasflow.study.lease import Lease
from nasflow.study.study import Study

from ..purge import end_jobs
from ..server.secrets import use_prefect_blocks
from .console import console


def clean_up(config: SearchConfig, take_over: bool) -> None:
    """Stop a study's jobs and workers. Its results are kept, and it can be resumed.

    Raises:
        UserError: another controller runs the study, its folder is another study's, or its training service can't be
            made.
    """
    use_prefect_blocks()
    lease = Lease(take_over)
    study = Study.open(config, lease)
    try:
        with lease.kept(lambda: None):
            if config.study_dir.exists():  # or another study's jobs would be ended
                claim_folder(config.study_dir, config.name, study.created_at)
            end_jobs(config)
    finally:
        study.close()
    said = f"study '{config.name}': its processes are stopped; `nasflow run` with its config resumes it"
    console().print(said, soft_wrap=True)
