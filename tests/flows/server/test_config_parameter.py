"""The config as a parameter of a deployment: complete, without secrets, and changed like the file it came from."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from nasflow.config.search import load_config, parse_config
from nasflow.errors import ConfigError
from nasflow.flows.deploy_step import read_config
from nasflow.flows.deployment import config_parameter

CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 10, 12, 14, 16, 18]}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 1},
    "budget": {"rounds": 1, "trials_per_round": 1},
    "training_service": {"kind": "local", "slots": 1},
}


def config(**changes: Any) -> Any:
    return parse_config({"name": "s", **CONFIG, **changes})


def test_the_config_is_complete_and_its_paths_hold_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search.yaml").write_text(yaml.safe_dump({"name": "s", **CONFIG}))
    parameter = config_parameter(load_config(Path("search.yaml")))
    paths = {"work_dir": tmp_path / "nasflow-runs", "store": f"sqlite:///{tmp_path}/nasflow.db"}
    monkeypatch.chdir("/")
    assert parse_config(parameter) == load_config(tmp_path / "search.yaml").model_copy(update=paths)
    assert parameter["strategy"] == {"kind": "random"}
    assert parameter["base_dir"] == str(tmp_path)


HOST = {"host": "there", "password": "very secret"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"training_service": {"kind": "ssh", "hosts": [{"host": "here"}, HOST]}},
            r"training_service\.hosts\.1\.password: Prefect would keep and show the text of a secret; write {env: ",
        ),
        (
            {"store": "postgresql://me:very secret@there/db"},
            r"store: Prefect would keep and show its password; .*PGPASS",
        ),
        (
            {"store": "postgresql://me@there/db?password=very secret"},
            r"store: Prefect would keep and show its password",
        ),
        (
            {"store": "postgresql://me@there/db?sslkey=key&sslpassword=very secret"},
            r"store: Prefect would keep and show its password; write {env: NAME} or {prefect_block: NAME} in its place",
        ),
        (
            {"checkpoint": {"url": "simplecache::ftp://me:very secret@there"}},
            r"checkpoint\.url: Prefect would keep and show its password; write {env: NAME} or {prefect_block: NAME}",
        ),
    ],
)
def test_passwords_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words) as refused:
        config_parameter(config(**changes))
    assert "very secret" not in str(refused.value)


def test_references_to_secrets_stay():
    hosts = [{"host": "there", "password": {"env": "PASSWORD"}, "passphrase": {"prefect_block": "key"}}]
    changed = config(training_service={"kind": "ssh", "hosts": hosts}, store="postgresql://me@there/db")
    parameter = config_parameter(changed)
    (host,) = parameter["training_service"]["hosts"]
    assert {key: host[key] for key in hosts[0]} == hosts[0]
    assert parameter["store"] == "postgresql://me@there/db"
    named = config_parameter(config(store={"env": "STUDIES"}, checkpoint={"url": {"prefect_block": "far"}}))
    assert (named["store"], named["checkpoint"]["url"]) == ({"env": "STUDIES"}, {"prefect_block": "far"})


DEVICES = {"kind": "local", "slots": 4}
ASHA = {"kind": "asha", "min_epochs": 2, "reduction_factor": 2}


@pytest.mark.parametrize(
    ("written", "change", "place", "value"),
    [
        ({"strategy": ASHA}, ("evaluator", "epochs", 4), "evaluator.stop_after", {"pick": [2, 4]}),
        ({"strategy": ASHA}, ("strategy", "min_epochs", 4), "evaluator.stop_after", {"pick": [4, 8]}),
        ({"strategy": {**ASHA, "min_epochs": 1}}, ("strategy", "kind", "random"), "evaluator.stop_after", None),
        ({"devices": 2}, ("evaluator", "parallel", {"devices": 4}), "training_service.devices_per_job", 4),
        ({"devices": 2}, ("evaluator", "parallel", None), "merge.enabled", True),
    ],
)
def test_what_follows_from_a_key_follows_from_its_change_in_the_form(written, change, place, value):
    evaluator = {**CONFIG["evaluator"], "epochs": 8}
    if devices := written.pop("devices", None):
        written = {"evaluator": {**evaluator, "parallel": {"devices": devices}}, "training_service": DEVICES}
    made = config(**{"evaluator": evaluator, **written})
    parameter = config_parameter(made)
    assert parse_config(parameter).model_copy(update={"store": made.store}) == made
    section, key, new = change
    parameter[section] = {"kind": "random"} if new == "random" else {**parameter[section], key: new}
    found = parse_config(parameter).model_dump(mode="json")
    for step in place.split("."):
        found = found[step]
    assert found == value


def test_what_the_file_says_is_changed_before_anything_follows_from_it(tmp_path):
    evaluator = {**CONFIG["evaluator"], "epochs": 8}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({"name": "s", **CONFIG, "evaluator": evaluator, "strategy": ASHA}))
    found = read_config(str(tmp_path / "s.yaml"), {"strategy": {**ASHA, "min_epochs": 3}}, work_dir=str(tmp_path))
    read = parse_config(found["config"])
    assert read.evaluator.stop_after.pick == [3, 6, 8]
    assert (read.base_dir, read.work_dir) == (tmp_path, tmp_path)
