"""A list of training services in a config."""

from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from nasflow.config.search import SearchConfig, parse_config
from nasflow.config.secret.secrets import secrets_of
from nasflow.config.services.several import SeveralServicesConfig
from nasflow.config.services.union import each_service
from nasflow.errors import ConfigError
from nasflow.flows import search
from nasflow.flows.deployment import config_parameter
from nasflow.training_service.make import make_service


def config(service: Any) -> SearchConfig:
    target = {"target": "nasflow.space.ready:mlp"}
    evaluator = {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}}
    return parse_config({"name": "kept", "space": target, "evaluator": evaluator, "training_service": service})


def test_a_list_is_several_services_also_after_it_was_recorded(tmp_path):
    parsed = config([{"kind": "slurm", "max_jobs": 2}, {"kind": "local", "slots": 1}])
    assert isinstance(parsed.training_service, SeveralServicesConfig)
    assert [each.kind for each in each_service(parsed.training_service)] == ["slurm", "local"]
    assert parse_config(parsed.model_dump(mode="json")) == parsed
    service = make_service(parsed.training_service, tmp_path / "root", tmp_path)
    assert service.slots() == ("slurm/slurm-0", "slurm/slurm-1", "local/cpu-0")


def test_the_server_takes_the_form_in_which_it_is_deployed():
    parsed = config([{"kind": "slurm"}, {"kind": "ssh", "hosts": [{"host": "h"}]}])
    assert not validate({"config": config_parameter(parsed)}, parameter_schema(search).model_dump(exclude_unset=True))


def test_one_service_in_a_list_is_one_of_several_too():
    assert [each.kind for each in each_service(config([{"kind": "local"}]).training_service)] == ["local"]
    assert [each.kind for each in each_service(config({"kind": "debug"}).training_service)] == ["debug"]


@pytest.mark.parametrize(
    ("services", "words"),
    [
        ([], "training_service: List should have at least 1 item"),
        ([{"kind": "local"}, {"kind": "ssh"}], "training_service.1.hosts: this key is required"),
        (
            [{"kind": "ssh", "hosts": [{"host": "h"}, {"hst": "i"}]}],
            "training_service.0.hosts.1.host: this key is required",
        ),
        ([{"kind": "local", "slotz": 1}], "training_service.0.slotz: unknown key; did you mean 'slots'?"),
        ([{"kind": "locl"}], "training_service.0.kind: there is no 'locl'"),
        ([{"kind": "debug"}], "training_service.0.kind: there is no 'debug'"),
        ([{"slots": 1}], "training_service.0.kind: this key is required"),
        ([{"kind": "local"}, {"kind": "local"}], "training_service: 'local' is listed twice; give one section"),
    ],
)
def test_a_mistake_is_named_by_its_place_in_the_list(services, words):
    with pytest.raises(ConfigError) as error:
        config(services)
    assert str(error.value).startswith(f"config: {words}")


def test_secrets_within_a_list_are_found():
    parsed = config(
        [{"kind": "ssh", "hosts": [{"host": "h", "password": "hush"}]}, {"kind": "ray", "headers": {"A": "hu"}}]
    )
    assert len(dict(secrets_of(parsed))) >= 3
    assert "hush" not in parsed.model_dump_json() + repr(parsed)
