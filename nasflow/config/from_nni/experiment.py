"""An NNI experiment as a search config: what is the same is translated, everything else is noted."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasflow.config.durations import duration_text
from nasflow.config.from_nni.entries import Entries, Notes
from nasflow.config.from_nni.printing import printed
from nasflow.config.from_nni.request import TRIAL_COMMAND
from nasflow.config.from_nni.search_space import SearchSpace, search_space
from nasflow.config.from_nni.services import kinds, training_services
from nasflow.config.from_nni.tuners import tuning
from nasflow.config.reading.yaml_file import read_yaml
from nasflow.config.search import NAME_LENGTH, parse_config
from nasflow.errors import ConfigError

_A_ROUND = 16
_MANY_ROUNDS = 1000

_NOT_NEEDED = {
    "nniManagerIp": "not needed: jobs need no way back to the controller",
    "versionCheck": "not needed: hosts run the controller's own nasflow",
    "logCollection": "not needed: metrics come back as events, logs with `nasflow show STUDY`",
    "tunerGpuIndices": "not needed: strategies use no GPU",
    "multiThread": "not needed",
    "multiPhase": "not needed: a trial is one candidate",
    "useAnnotation": "annotations in code are not read; write a function build(pick)",
    "debug": "`nasflow run CONFIG --verbose`",
    "logLevel": "`nasflow run CONFIG --verbose`",
    "logDir": "`work_dir` and `store` say where a search keeps its files",
    "experimentWorkingDirectory": "`work_dir` and `store` say where a search keeps its files",
    "authorName": "there is no such key; a comment can say it",
    "description": "there is no such key; a comment can say it",
    "nniExperimentId": "a study is known by its `name`",
}


@dataclass(frozen=True)
class Translation:
    """A translated experiment.

    Attributes:
        text: the search config, as YAML with comments.
        notes: what is to be done by hand, by key of the NNI config.
        error: why the config can't be used as it is, None if it can.
    """

    text: str
    notes: list[str]
    error: str | None


def from_nni(path: Path) -> Translation:
    """Translate a file. Raises ConfigError if it can't be read, or is no NNI config."""
    values = read_yaml(path, old=True)  # as NNI does
    if not isinstance(values, dict) or not {str(key) for key in values} & _SIGNS:
        raise ConfigError(
            f"{path}: is no config of an NNI experiment, which has 'trainingService' or 'trainingServicePlatform'; "
            "give the file that `nnictl create --config` takes"
        )
    return translate(values, path, kinds())


_SIGNS = {"trainingService", "training_service", "trainingServicePlatform"}


def translate(values: Mapping[Any, Any], path: Path, known: Mapping[str, Collection[str]]) -> Translation:
    """Translate the content of a file.

    Args:
        path: of the file; what it names is beside it.
        known: the keys of the training services that can be used, by kind.
    """
    notes = Notes()
    config = Entries(values, "", notes)
    made: dict[str, Any] = {"name": _name(config, path.stem)}
    trial = config.section("trial")
    made |= _code(config, trial, path)
    space = search_space(config, path.resolve().parent)
    made |= {"space": {"target": "space.py:build"}, "evaluator": _evaluator(space), **tuning(config)}
    made |= _limits(config)
    services, work_dir = training_services(config, trial, known)
    if services:
        made["training_service"] = services[0] if len(services) == 1 else services
    if work_dir is not None:
        made["work_dir"] = work_dir
    error = _refused(made)
    if error is not None and len(services) > 1:
        one = made | {"training_service": services[0]}
        if _refused(one) is None:
            notes.add("trainingService", "this list of services is not accepted; the first of them is printed")
            made, error = one, None
    for entries in (trial, config):
        entries.drop(TRIAL_COMMAND, "command", "trialCommand")
        entries.drop("of a training service that is left out", "gpuNum", "trialGpuNumber")
        for key, text in _NOT_NEEDED.items():
            entries.drop(text, key)
        entries.rest()
    return Translation(printed(made, space.picks), [str(note) for note in notes], error)


def _refused(made: dict[str, Any]) -> str | None:
    """Return why a config is refused; None if it is not."""
    try:
        parse_config(made, "the printed config")
    except ConfigError as error:
        return str(error)
    return None


def _name(config: Entries, stem: str) -> str:
    written = config.text("experimentName")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", written or stem).strip("-._")[:NAME_LENGTH] or "search"
    if written is not None and name != written:
        config.notes.add("experimentName", "a study's name has letters, digits and . _ - only; it was changed")
    return name


def _code(config: Entries, trial: Entries, path: Path) -> dict[str, str]:
    """Return `base_dir`, where the code is not beside the config."""
    folder = path.resolve().parent
    code = trial.text("codeDir") or config.text("trialCodeDirectory")
    if code is None:
        return {}
    try:
        there = (folder / Path(code).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError):
        config.notes.add("trialCodeDirectory", "is no path on this machine; it is left out")
        return {}
    return {} if there == folder else {"base_dir": str(there)}


def _evaluator(space: SearchSpace) -> dict[str, Any]:
    data: dict[str, Any] = {"target": "data.py:data"}
    evaluator: dict[str, Any] = {"kind": "classification", "data": data}
    if space.data:
        data["params"] = space.data
    if space.optimizer:
        evaluator["optimizer"] = space.optimizer
    return evaluator


def _limits(config: Entries) -> dict[str, Any]:
    """Return `budget` and `limits`."""
    trials = config.count("maxTrialNumber", "maxTrialNum")
    seconds = config.seconds("maxExperimentDuration", "maxExecDuration")
    of_a_trial = config.seconds("maxTrialDuration")
    budget: dict[str, Any] = {}
    if trials:
        budget = {"rounds": -(-trials // _A_ROUND), "trials_per_round": min(trials, _A_ROUND), "trials": trials}
    elif seconds:
        budget = {"rounds": _MANY_ROUNDS}
    if seconds:
        budget |= {"hours": round(seconds / 3600, 4) or 0.0001, "on_timeout": "stop"}
    made: dict[str, Any] = {"budget": budget} if budget else {}
    return made | ({"limits": {"trial": duration_text(of_a_trial)}} if of_a_trial else {})
