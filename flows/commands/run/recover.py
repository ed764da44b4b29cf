"""`nasflow recover STUDY`: resumes one search in this process."""

from nasflow.study.study import Study

from ...budget import is_finished
from ...recovery.resume import BURIED, search_runs
from ...server.client import prefect_client
from ..console import console
from .command import run_search


def recover_one(study: Study, dry_run: bool) -> int:
    """Resume a search in this process, dead or not, and close `study`. Returns the exit code.

    Raises:
        UserError: another controller runs the study.
    """
    config = study.config
    try:
        finished, held = is_finished(study), study.controller()
    finally:
        study.close()
    if finished or dry_run:
        what = "is finished: there is nothing to resume" if finished else "would be resumed"
        console().print(f"study '{config.name}' {what}", soft_wrap=True)
        return 0
    if held is None:
        with prefect_client() as client:
            search_runs(client, config).bury(BURIED)
    return run_search(config, None, take_over=False)
