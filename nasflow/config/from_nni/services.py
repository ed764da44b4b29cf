"""Where trials run: any training service of NNI's, as far as this version has a kind for it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel

from nasflow.config.from_nni import clusters, hosted, hosts
from nasflow.config.from_nni.entries import Entries, plain
from nasflow.config.from_nni.request import Request, Section
from nasflow.config.search import SearchConfig


@dataclass(frozen=True)
class _Translation:
    """How one of NNI's services is translated.

    Attributes:
        kind: of nasflow.
        section: the key of its own section in a config of version 1.
        fill: puts what it finds into a section.
        instead: what to do where this version has no such kind.
    """

    kind: str
    section: str
    fill: Callable[[Request, Section], None]
    instead: str = "use Slurm, Ray or Dask there, or its machines as SSH hosts"


_TRANSLATIONS = {
    "local": _Translation("local", "localConfig", hosts.local),
    "remote": _Translation("ssh", "remoteConfig", hosts.remote),
    "kubeflow": _Translation("kubeflow", "kubeflowConfig", clusters.kubeflow),
    "frameworkcontroller": _Translation(
        "frameworkcontroller", "frameworkcontrollerConfig", clusters.framework_controller
    ),
    "adl": _Translation("adaptdl", "adlConfig", clusters.adaptdl),
    "openpai": _Translation("openpai", "paiConfig", hosted.openpai),
    "dlts": _Translation("dlts", "dltsConfig", hosted.dlts),
    "aml": _Translation("azureml", "amlConfig", hosted.azure_ml),
    "dlc": _Translation("dlc", "dlcConfig", hosted.dlc),
}
_OTHER_NAMES = {"pai": "openpai", "paik8s": "openpai", "adaptdl": "adl", "azureml": "aml"}

SERVICES = tuple(_TRANSLATIONS)
"""NNI's names of training services."""


def kinds() -> dict[str, frozenset[str]]:
    """Return the keys of each kind of training service that this version has."""
    found: dict[str, frozenset[str]] = {}

    def collect(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if "kind" in annotation.model_fields:
                found[annotation.model_fields["kind"].default] = frozenset(annotation.model_fields)
        else:
            for part in get_args(annotation):
                collect(part)

    collect(SearchConfig.model_fields["training_service"].annotation)
    return found


def training_services(
    config: Entries, trial: Entries, known: Mapping[str, Collection[str]]
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the sections of an experiment's services, and the `work_dir` that they need, if any.

    Args:
        config: the experiment; `trialConcurrency` and the sections of services are taken.
        trial: its section `trial`, of version 1.
        known: the keys of the kinds that can be used.
    """
    shared = config.section("sharedStorage")
    concurrency = config.count("trialConcurrency")
    gpus = config.count("trialGpuNumber")
    found: list[dict[str, Any]] = []
    work_dir, lacking = None, False
    named = _named(config)
    trials, storages = trial.copies(len(named)), shared.copies(len(named))  # each service may need the same of them
    for (name, key, entries), its_trial, its_shared in zip(named, trials, storages, strict=True):
        translation = _TRANSLATIONS.get(plain(name))
        if translation is None:
            config.notes.add(key, "no service of NNI's own; write it as a class, and name it as kind custom")
        elif translation.kind not in known:
            text = f"this version has no training service of kind {translation.kind}; {translation.instead}"
            config.notes.add(key, text)
            lacking = True
        else:
            section = Section(translation.kind, known[translation.kind], config.notes)
            machines = config.sections("machineList") if plain(name) == "remote" else []
            request = Request(entries, its_trial, its_shared, concurrency, gpus, machines)
            translation.fill(request, section)
            request.finish(section)
            found.append(section.values)
            work_dir = work_dir or section.work_dir
    trial.take_as(trials)
    if lacking:
        trial.drop("of a service that is left out", *_OF_A_JOB)
    shared.take_as(storages)
    if found:
        shared.rest()
    return found, work_dir


_OF_A_JOB = ("gpuNum", "cpuNum", "memoryMB", "image", "worker", "ps", "master", "taskRoles", "virtualCluster", "shmMB")


def _named(config: Entries) -> list[tuple[str, str, Entries]]:
    """Return the name, key and section of each service, of either version of the config."""
    if config.has("trainingService"):
        key = config.key("trainingService")
        config.drop("the trainingService of version 2 stands", "trainingServicePlatform")
        found = []
        for entries in config.sections("trainingService"):
            name = entries.text("platform") or ""
            found.append((_OTHER_NAMES.get(plain(name), name), entries.key("platform") if entries else key, entries))
        return found
    key = config.key("trainingServicePlatform")
    name = config.text("trainingServicePlatform") or ""
    names = [name]
    if plain(name) == "hybrid":
        listed = config.section("hybridConfig").take("trainingServicePlatforms")
        names = [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
    found = []
    for each in names:
        known = _OTHER_NAMES.get(plain(each), each)
        translation = _TRANSLATIONS.get(plain(known))
        section = config.section(translation.section) if translation else Entries({}, "", config.notes)
        found.append((known, key, section))
    return found
