"""The translated config as text: YAML, with a comment above each section."""

from collections.abc import Sequence
from typing import Any

import yaml

from nasflow.config.reading.yaml_file import read_numbers

_COMMENTS = {
    "name": "Translated from the config of an NNI experiment by `nasflow from-nni`; check it by `nasflow validate`.",
    "base_dir": "the folder of your code (trialCodeDirectory)",
    "space": "to be written: a function build(pick) in space.py that returns a torch.nn.Module (see below)",
    "evaluator": "data.py is to be written: a function data(...) that returns two loaders, to train and to validate.\n"
    "Or kind regression, or lightning with a LightningModule of yours: docs/from-nni.md",
    "strategy": "tuner, advisor",
    "objectives": "the metric that trials reported as their default one, by the name that the evaluator logs it under",
    "pruner": "assessor, advisor",
    "budget": "maxTrialNumber, maxExperimentDuration",
    "limits": "maxTrialDuration; it counts training time",
    "training_service": "trainingService; a job trains up to merge.max_members trials (16) together",
    "work_dir": "in a folder that nodes see, too",
}
_ORDER = ("name", "base_dir", "space", "evaluator", "objectives", "strategy", "pruner", "seed", "budget", "limits")


class _Dumper(yaml.SafeDumper):
    """Writes out what it would else alias, and quotes text that would be read as a number."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True."""
        return True


read_numbers(_Dumper)


def printed(config: dict[str, Any], picks: Sequence[str]) -> str:
    """Return a config as YAML. A comment at its end lists the calls of `pick` for `build(pick)`."""
    keys = [*(key for key in _ORDER if key in config), *(key for key in config if key not in _ORDER)]
    parts = []
    for key in keys:
        comment = "".join(f"# {line}\n" for line in _COMMENTS.get(key, "").splitlines())
        parts.append(comment + _dumped({key: config[key]}))
    if picks:
        lines = ["space.py, from the search space; the values are for your model, or for what trains it:", ""]
        lines += ["def build(pick):", *(f"    {_variable(index)} = {pick}" for index, pick in enumerate(picks))]
        lines += ["    return ...  # a torch.nn.Module"]
        parts.append("".join(f"# {line}".rstrip() + "\n" for line in lines))
    return "\n".join(parts)


def _dumped(section: dict[str, Any]) -> str:
    """Return a section as YAML, all of whose characters a terminal can show."""
    text = yaml.dump(section, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    shown = text.replace("\n", "").isprintable()
    return text if shown else yaml.dump(section, Dumper=_Dumper, sort_keys=False, allow_unicode=False)


def _variable(index: int) -> str:
    return f"value_{index + 1}"
