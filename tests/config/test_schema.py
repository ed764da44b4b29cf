"""What Prefect's form and its check of parameters know of a search: the JSON schema of the search flow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from nasflow.config.search import load_config, parse_config
from nasflow.errors import ConfigError
from nasflow.flows import retention, search
from nasflow.flows.deployment import config_parameter

ROOT = Path(__file__).parents[2]
SCHEMA = parameter_schema(search).model_dump(exclude_unset=True)
UNIONS = {
    "evaluator": {"classification", "regression", "lightning", "custom"},
    "strategy": {"random", "grid", "evolution", "tpe", "custom"},
    "training_service": {
        "local",
        "ssh",
        "slurm",
        "ray",
        "dask",
        "kubernetes",
        "kubeflow",
        "frameworkcontroller",
        "adaptdl",
        "prefect",
        "openpai",
        "dlts",
        "dlc",
        "azureml",
        "debug",
        "custom",
        "several",
    },
}


def definition(name: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA["definitions"][name]
    return found


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each field of the parameters and of all sections, with the title of its section where it has none itself."""
    for name, section in SCHEMA["definitions"].items():
        for key, field in section.get("properties", {}).items():
            of_section = definition(field["$ref"].rpartition("/")[2]) if "$ref" in field else {}
            yield f"{name}.{key}", {"title": of_section.get("title"), **field}


@pytest.mark.parametrize(("name", "field"), [pytest.param(name, field, id=name) for name, field in fields()])
def test_every_field_has_a_title_and_a_description(name, field):
    assert field["title"][0].isupper() or name.endswith(".nasflow")
    assert "_" not in field["title"]
    assert len(field["description"]) > 3


def test_sections_and_parameters_are_described():
    for name, section in SCHEMA["definitions"].items():
        assert section.get("description") or name.startswith("Options_")  # a generic class has no words of its own
        assert section["additionalProperties"] is False  # unknown keys are refused
    for flow in (search, retention):
        for parameter in parameter_schema(flow).properties.values():
            assert parameter["description"]


@pytest.mark.parametrize("key", UNIONS)
def test_unions_are_told_apart_by_kind(key):
    field = definition("SearchConfig")["properties"][key]
    assert field["discriminator"]["propertyName"] == "kind"
    assert UNIONS[key] <= set(field["discriminator"]["mapping"])
    for target in field["discriminator"]["mapping"].values():
        assert "kind" in definition(target.rpartition("/")[2])["required"]


def test_the_pruner_is_one_of_a_union_or_none():
    union, none = definition("SearchConfig")["properties"]["pruner"]["anyOf"]
    assert set(union["discriminator"]["mapping"]) == {"median", "halving", "custom"}
    assert none == {"type": "null"}


def test_bounds_and_enums_are_told():
    assert definition("Budget")["properties"]["rounds"]["exclusiveMinimum"] == 0
    assert definition("EvolutionConfig")["properties"]["crossover"]["maximum"] == 1
    assert definition("MergeConfig")["properties"]["fuse"]["enum"] == ["measured", "always", "never"]
    assert definition("RecurringConfig")["properties"]["study"]["enum"] == ["new", "continue", "warm_start"]


GOOD = {
    "name": "s",
    "space": {"target": "nasflow.space.ready:mlp"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
}
BAD = {
    "type": {"budget": {"rounds": "many"}},
    "bound": {"budget": {"rounds": 0}},
    "bound-of-a-union": {"strategy": {"kind": "evolution", "crossover": 2}},
    "unknown-key": {"epochs": 3},
    "unknown-key-below": {"merge": {"max_member": 3}},
    "unknown-key-of-a-union": {"training_service": {"kind": "local", "slotz": 1}},
    "unknown-kind": {"strategy": {"kind": "magic"}},
    "no-kind": {"strategy": {"population": 3}},
    "enum": {"objectives": [{"metric": "val_loss", "direction": "down"}]},
    "searched-value": {"evaluator": {**GOOD["evaluator"], "epochs": {"int": [1]}}},  # type: ignore[dict-item]
    "recurring": {"recurring": {"study": "sometimes"}},
}


def test_the_server_takes_a_good_config():
    assert not validate({"config": GOOD}, SCHEMA)
    assert not validate({"config": GOOD, "budget": {"rounds": 2, "trials_per_round": 8}}, SCHEMA)
    assert validate({"config": GOOD, "budget": {"rounds": 0}}, SCHEMA)
    assert validate({}, SCHEMA)


@pytest.mark.parametrize("name", BAD)
def test_the_server_refuses_what_nasflow_refuses(name):
    with pytest.raises(ConfigError):
        parse_config({**GOOD, **BAD[name]})
    assert validate({"config": {**GOOD, **BAD[name]}}, SCHEMA)


@pytest.mark.parametrize("file", sorted((ROOT / "examples").rglob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_can_be_deployed(file):
    assert not validate({"config": config_parameter(load_config(file))}, SCHEMA)
