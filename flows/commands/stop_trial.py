"""`nasflow stop-trial`: ends one trial; the others of its job train on."""

from nasflow.study.study import Study

from ..pool.make import make_service
from ..server.secrets import use_prefect_blocks
from .console import console


def stop_trial(study: Study, number: int) -> None:
    """Ask the job of a trial to end it after its present epoch.

    Raises:
        UserError: there is no such trial, it is not in training, or its service can't do that.
    """
    study.refuse_ended(number)
    use_prefect_blocks()
    config = study.config
    make_service(config.training_service, config.study_dir, config.base_dir).stop_trial(number)
    when = "its present epoch; the others of its job train on"
    if study.controller() is None:
        when = "the epoch that it trains next; no controller runs the study now"
    console().print(f"trial {number} of study '{config.name}' ends after {when}")
