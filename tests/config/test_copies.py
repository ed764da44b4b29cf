"""Copies of configs with other values: `model_copy(update=...)`, by which notebooks vary a search."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nasflow.config.search import (
    Budget,
    ClassificationConfig,
    Objective,
    Options,
    RandomConfig,
    SearchConfig,
    load_config,
    parse_config,
)
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import EnvironmentSecret
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.values import Section

ROOT = Path(__file__).parents[2]
EVALUATOR = {
    "kind": "classification",
    "data": {"target": "nasflow.evaluator.data:DigitsRows"},
    "epochs": 9,
}


def config(**values: Any) -> SearchConfig:
    given = {"name": "first", "space": {"target": "nasflow.space.ready:mlp"}, "evaluator": EVALUATOR}
    return parse_config({**given, **values})


def asha(**values: Any) -> SearchConfig:
    return config(strategy={"kind": "asha"}, **values)


def stops(made: SearchConfig) -> list[int] | None:
    found = made.evaluator.stop_after
    return None if found is None else found.pick  # type: ignore[union-attr]


def test_another_strategy_has_no_rungs_of_the_first() -> None:
    first = asha()
    assert stops(first) == [1, 3, 9]
    assert stops(first.model_copy(update={"name": "r", "strategy": RandomConfig()})) is None
    assert stops(first.model_copy(update={"strategy": {"kind": "asha", "reduction_factor": 2}})) == [1, 2, 4, 8, 9]
    assert stops(SearchConfig(**{**dict(first), "strategy": RandomConfig()})) is None
    assert stops(first.model_copy(update={"name": "again"})) == [1, 3, 9] == stops(first)


def test_another_evaluator_has_rungs_of_its_own_epochs() -> None:
    first = asha()
    longer = first.evaluator.model_copy(update={"epochs": 27})
    assert stops(first.model_copy(update={"evaluator": longer})) == [1, 3, 9, 27]
    assert stops(config().model_copy(update={"evaluator": longer})) is None
    every_third = first.evaluator.model_copy(update={"validate_every": 3, "epochs": 18})
    thirds = first.model_copy(update={"evaluator": every_third, "strategy": {"kind": "asha", "min_epochs": 3}})
    assert stops(thirds) == [3, 9, 18]


def test_rungs_that_are_given_stay() -> None:
    given = asha(evaluator={**EVALUATOR, "stop_after": {"pick": [1, 9]}})
    assert stops(given.model_copy(update={"strategy": RandomConfig()})) == [1, 9]
    assert stops(given.model_copy(update={"evaluator": given.evaluator.model_copy(update={"epochs": 27})})) == [1, 9]


def test_devices_follow_from_the_evaluator_of_the_copy() -> None:
    wide = config(evaluator={**EVALUATOR, "parallel": {"devices": 2}}, training_service={"kind": "local", "slots": 8})
    assert isinstance(wide.evaluator, ClassificationConfig) and isinstance(wide.training_service, LocalServiceConfig)
    assert (wide.devices_of_job, wide.merge.enabled) == (2, False)
    wider = wide.evaluator.model_copy(update={"parallel": {"devices": 4}})
    assert wide.model_copy(update={"evaluator": wider}).devices_of_job == 4
    narrow = wide.model_copy(
        update={
            "evaluator": wide.evaluator.model_copy(update={"parallel": None}),
            "training_service": wide.training_service.model_copy(update={"slots": 4}),
            "merge": wide.merge.model_copy(update={"max_members": 4}),
        }
    )
    assert narrow == config(merge={"max_members": 4}, training_service={"kind": "local", "slots": 4})
    assert wide.model_copy(update={"evaluator": narrow.evaluator}).merge.enabled


def test_machines_and_several_services_follow_from_it_too() -> None:
    services = [{"kind": "slurm"}, {"kind": "local", "slots": 8}]
    wide = config(evaluator={**EVALUATOR, "parallel": {"devices": 2}}, training_service=services)
    plain = {"evaluator": EVALUATOR}
    assert wide.model_copy(update=plain) == config(training_service=services)
    nodes = config(evaluator={**EVALUATOR, "parallel": {"devices": 1, "nodes": 3}}, training_service={"kind": "slurm"})
    assert isinstance(nodes.training_service, SlurmServiceConfig) and nodes.training_service.most_nodes == 3
    assert nodes.model_copy(update=plain) == config(training_service={"kind": "slurm"})
    unmerged = config(merge={"enabled": False}, evaluator={**EVALUATOR, "parallel": {"devices": 2}})
    assert not unmerged.model_copy(update=plain).merge.enabled


def test_values_are_validated() -> None:
    first = config()
    for section, wrong in (
        (first, {"epochs": 20}),
        (first, {"budget": {"round": 1}}),
        (first, {"seed": "many"}),
        (first.evaluator, {"epoch": 20}),
        (first.evaluator, {"folds": 3, "repeats": 2}),
        (first.budget, {"rounds": 0}),
    ):
        with pytest.raises(ValidationError):
            section.model_copy(update=wrong)
    assert first.model_copy(update={"budget": {"rounds": 1}}).budget == Budget(rounds=1)
    assert first.model_copy(update={"begin_with": [{"widths": (1, 2)}]}).begin_with == [{"widths": [1, 2]}]


def test_paths_become_absolute_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = config()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    changed = first.model_copy(update={"work_dir": Path("runs-b")})
    assert changed.work_dir == tmp_path / "other" / "runs-b"
    assert (changed.base_dir, changed.store) == (tmp_path, first.store)
    assert first.model_copy(update={"seed": 1}).work_dir == tmp_path / "nasflow-runs"


def test_a_store_of_a_copy_is_a_secret() -> None:
    shared = config().model_copy(update={"store": "postgresql://me:secret@db/nas"})
    assert isinstance(shared.store, SecretUrl) and "secret" not in str(shared)
    assert config().model_copy(update={"store": {"env": "URL"}}).store == EnvironmentSecret(env="URL")


def test_the_direction_follows_from_the_new_metric() -> None:
    assert Objective().model_copy(update={"metric": "val_loss"}).direction == "minimize"
    assert Objective(metric="val_loss").model_copy(update={"metric": "val_f1"}).direction == "maximize"
    given = Objective(metric="val_mine", direction="minimize")
    assert given.model_copy(update={"metric": "val_other"}).direction == "minimize"


def test_only_given_keys_count_as_set() -> None:
    """As those of a budget, which replace the config's (`search(config, budget)`)."""
    assert Budget(trials=3).model_copy(update={"rounds": 2}).model_fields_set == {"trials", "rounds"}


def sections(value: Any) -> list[Section]:
    if isinstance(value, Section):
        return [value, *(found for name in type(value).model_fields for found in sections(getattr(value, name)))]
    if isinstance(value, list | tuple):
        return [found for item in value for found in sections(item)]
    return []


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("**/*.yaml")), ids=lambda file: file.stem)
def test_a_copy_with_a_value_that_it_has_is_equal(file: Path) -> None:
    for section in sections(load_config(file)):
        key = next(iter(section.model_fields_set or type(section).model_fields))
        value = getattr(section, key)
        assert section.model_copy(update={key: value}) == section.as_given()
        assert section.model_copy(update={key: value}, deep=True) == section.as_given()
        assert section.model_copy() == section


def test_options_stay_options() -> None:
    assert Options[int](pick=[1]).model_copy(update={"pick": [2]}) == Options[int](pick=[2])
