"""Writes the folder of an exported model."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nasflow.config.search import ProgramConfig, SearchConfig
from nasflow.errors import UserError
from nasflow.report.export.code_files import collect_code, named_files
from nasflow.report.export.score_script import SCORE_SCRIPT
from nasflow.trial import Trial

_FORMAT = 2
"""Of 1, `code/` lacks the code of callbacks."""


def export_model(
    out: Path,
    trial: Trial,
    config: SearchConfig,
    weights: Mapping[str, Any],
    others: Mapping[str, Any] | None = None,
) -> Path:
    """Write a trained model to the folder `out`. An earlier export there is replaced once the new one is complete.

    It has `model.safetensors`, `architecture.json`, `search.json` (space, evaluator, seeds, recorded metrics), `code/`
    (the search's own files) and `score.py`.

    Args:
        out: the folder; missing parents are created.
        trial: a scored trial.
        config: the config of the search.
        weights: the state dict of the trained model.
        others: what its LightningModule has beside it; if there is any, it goes to `module.safetensors`.

    Returns:
        The folder `out`.

    Raises:
        UserError: `out` can't be used (`refuse_folder`), or files of the search have the same place in the copy.
    """
    from nasflow.checkpoint.weights_file import write_weights  # noqa: PLC0415 - torch is slow

    refuse_folder(out)
    place = out.resolve() if out.is_symlink() else out
    place.parent.mkdir(parents=True, exist_ok=True)
    aside, old = (place.parent / f".{place.name}.{kind}" for kind in ("new", "old"))
    _put_back(old, place)  # as a killed export could not
    _remove(aside, old)
    try:
        _write(aside, trial, config)
        write_weights(aside / "model.safetensors", weights)
        if others:
            write_weights(aside / "module.safetensors", others)
        if place.exists():
            place.rename(old)
        aside.rename(place)
    finally:
        _put_back(old, place)
        _remove(aside, old)
    return out


def refuse_folder(out: Path) -> None:
    """Raise UserError if no export can be written to `out`: it exists and is not an export, or may not be made."""
    if out.exists() and not _is_export(out) and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} exists and is not an export of nasflow: name another folder, or remove it")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        why = "you may not write there" if above.is_dir() else "it is not a folder"
        raise UserError(f"{out} can't be written below {above}, because {why}: name another folder")


def refuse_export(config: SearchConfig) -> None:
    """Raise UserError if the trials of a search have no weights that nasflow knows."""
    if isinstance(config.evaluator, ProgramConfig):
        raise UserError(
            f"trials of evaluator.kind {config.evaluator.kind} save what their own programs save, so there is no model "
            "to export; its checkpoints are in the trial's folder"
        )


def _write(folder: Path, trial: Trial, config: SearchConfig) -> None:
    files, renamed = collect_code(_targets(config), config.base_dir)
    callbacks = getattr(config.evaluator, "callbacks", [])
    for section in (config.space, config.evaluator, getattr(config.evaluator, "module", None), *callbacks):
        for place, source in named_files(getattr(section, "params", None), config.base_dir):
            files.setdefault(place, source)
    code = folder / "code"
    code.mkdir(parents=True)
    for place, source in files.items():
        (code / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, code / place)
    _write_json(folder / "architecture.json", dict(trial.architecture))
    _write_json(folder / "search.json", _search(trial, config, renamed))
    (folder / "score.py").write_text(SCORE_SCRIPT)


def _search(trial: Trial, config: SearchConfig, renamed: Mapping[str, str]) -> dict[str, Any]:
    """What `nasflow.training.scoring` needs to build and score the model, and the expected metrics."""
    parts = config.model_dump(mode="json", include={"space", "evaluator", "objectives"})
    for section in _sections_with_targets(parts):
        section["target"] = renamed[section["target"]]
    return {
        "nasflow_export": _FORMAT,
        "made_with": {package: version(package) for package in ("nasflow", "torch")},
        "study": config.name,
        "trial": trial.number,
        "seed": config.seed,
        "trial_seed": trial.seed,
        "epochs": trial.epochs,
        **parts,
        "metrics": trial.metrics,
    }


def _targets(config: SearchConfig) -> Iterator[str]:
    for section in _sections_with_targets(config.model_dump(mode="json", include={"space", "evaluator"})):
        yield section["target"]


def _sections_with_targets(parts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the sections of `space` and `evaluator` that name code by an import path."""
    evaluator = parts["evaluator"]
    sections = [parts["space"], evaluator, *(evaluator.get(key) for key in ("data", "module", "optimizer", "loss"))]
    for section in [*sections, *evaluator.get("metrics", []), *evaluator.get("callbacks", [])]:
        if isinstance(section, dict) and section.get("target"):
            yield section


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n")


def _is_export(folder: Path) -> bool:
    try:
        return "nasflow_export" in json.loads((folder / "search.json").read_text())
    except (OSError, ValueError):
        return False


def _put_back(old: Path, place: Path) -> None:
    """Rename an earlier export back if no new one has taken its place."""
    if old.exists() and not place.exists():
        old.rename(place)


def _remove(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
