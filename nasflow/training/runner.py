"""The program every training service starts: `python -m nasflow.training.runner <root>/jobs/<job_id>/job.json`."""

import sys
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from nasflow.clean_text import error_text
from nasflow.config.evaluator.training import TrainingConfig
from nasflow.config.search import ProgramConfig
from nasflow.errors import InfrastructureError, PreemptedError, RefusedError
from nasflow.job import activity
from nasflow.job.disk_full import is_full
from nasflow.job.events import Ended, EventWriter
from nasflow.job.spec import CANNOT_WRITE, DEVICE_FAULT, JobSpec, read_spec
from nasflow.system.open_files import lacks_files
from nasflow.system.present_folder import in_folder
from nasflow.training.device.fault import DeviceFaultError, refuse_fault
from nasflow.training.device.settings import device_settings
from nasflow.training.program.job import ProgramJob
from nasflow.training.scoring_job import ScoringJob
from nasflow.training.training_job import TrainingJob
from nasflow.training.wide.job import WideJob
from nasflow.training.wide.node_job import NodeJob


def run_job_file(path: Path) -> int:
    """Run the job described in `path`, its events beside it.

    Returns:
        0 when the job ended, even if members failed; 1 when the job as a whole could not run; CANNOT_WRITE when there
        was no room to report that; DEVICE_FAULT when this process can't use its GPU any more.
    """
    path = path.resolve()
    events = EventWriter(path.parent / "events.jsonl")
    try:
        spec = read_spec(path)
        # relative paths among the user's params start at base_dir
        with in_folder(spec.base_dir), activity.recorded_in(path.parent / activity.FILE):
            _run(spec, path, events)
    except DeviceFaultError as fault:
        if fault.is_hardware:
            return _tell_why(events, InfrastructureError(f"the GPU has failed: {fault}"))
        sys.stderr.write(f"{fault}\n")
        return DEVICE_FAULT
    except Exception as error:
        return _tell_why(events, error)
    finally:
        events.close()
    return 0


def _run(spec: JobSpec, path: Path, events: EventWriter) -> None:
    try:
        with _settings(spec):
            _kind(spec)(spec, path.parents[2], events.write).run()
    except Exception as error:
        refuse_fault(error)  # also one that had come up in what followed from it
        raise


def _settings(spec: JobSpec) -> AbstractContextManager[None]:
    """Return the settings of this process's device, if the job computes here and not in processes of its own."""
    evaluator = spec.evaluator
    if isinstance(evaluator, TrainingConfig) and (spec.tests or evaluator.parallel is None):
        return device_settings(evaluator, 1 + max(member.device for member in spec.members))
    return nullcontext()


def _kind(spec: JobSpec) -> type[TrainingJob] | type[ScoringJob] | type[NodeJob]:
    if spec.tests:
        return ScoringJob
    if spec.node is not None and spec.node.number:
        return NodeJob
    if spec.evaluator.parallel is not None:
        return WideJob
    return ProgramJob if isinstance(spec.evaluator, ProgramConfig) else TrainingJob


def _tell_why(events: EventWriter, error: Exception) -> int:
    lost = isinstance(error, InfrastructureError) or is_full(error) or lacks_files(error)
    refused = isinstance(error, RefusedError)
    text = str(error) if lost or refused else error_text(error)
    try:
        preempted = isinstance(error, PreemptedError) and error.saved
        events.write(Ended(error=text, infrastructure=lost, refused=refused, preempted=preempted))
    except OSError:
        traceback.print_exc()
        return CANNOT_WRITE
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m nasflow.training.runner JOB.json")
    sys.exit(run_job_file(Path(sys.argv[1])))
