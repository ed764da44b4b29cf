"""What a config means: numbers as YAML 1.2 writes them, each key once, and which way a metric is better."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.reading.yaml_file import read_yaml
from nasflow.config.search import SearchConfig, load_config, parse_config
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import EnvironmentSecret
from nasflow.errors import ConfigError
from nasflow.system.present_folder import in_folder


def read(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "search.yaml"
    file.write_text(text)
    return read_yaml(file)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            ("1e-3", 1e-3),
            ("1E5", 1e5),
            ("-2e4", -2e4),
            ("+1e+2", 100.0),
            ("1.5e3", 1500.0),
            (".5e1", 5.0),
            ("1.e2", 100.0),
        ),
        *(("12", 12), ("0.1", 0.1), ("1.0e-3", 1e-3), ("0x1e3", 0x1E3), ("-7", -7), ("2024-01-02", date(2024, 1, 2))),
        *(("010", 10), ("-007", -7), ("0o17", 15), ("08", 8), ("0.", 0.0), ("-.inf", float("-inf"))),
        *(("4:00:00", "4:00:00"), ("12:00", "12:00"), ("1:30.5", "1:30.5"), ("1_000", "1_000"), ("0b11", "0b11")),
        *(("true", True), ("False", False), ("TRUE", True), ("~", None), ("null", None)),
        *((word, word) for word in ("yes", "NO", "on", "Off", "y", "N", "tRUE", "=", "<", "0o8", "-0x1", "1.2.3")),
        *(("'1e-3'", "1e-3"), ("1e", "1e"), ("e3", "e3"), ("1e3b", "1e3b"), ("v1e3", "v1e3"), ("1-2e3", "1-2e3")),
    ],
)
def test_numbers(text: str, value: Any, tmp_path: Path) -> None:
    found = read(tmp_path, f"lr: [{text}]")["lr"][0]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' is given twice; leave one out in line 3, column 1"),
        ("x:\n  lr: 0.1\n  epochs: 2\n  lr: 0.2\n", "'lr' is given twice; leave one out in line 4, column 3"),
        ("x: [{1: a, 1: b}]", "'1' is given twice"),
        ("{'a': 1, a: 2}", "'a' is given twice"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(text: str, place: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"not valid YAML: the key ") as refused:
        read(tmp_path, text)
    assert place in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "base: &base {lr: 1, epochs: 2}\nown: {<<: *base, lr: 3}\n",
        "base: &base {lr: 1, epochs: 2}\nmore: &more {<<: *base, lr: 2}\nown: {<<: [*more, *base], lr: 3}\n",
    ],
)
def test_merged_keys_may_be_replaced(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text)["own"] == {"lr": 3, "epochs": 2}


def config(objective: dict[str, Any], **evaluator: Any) -> SearchConfig:
    data = {"target": "nasflow.evaluator.data:Digits"}
    return parse_config(
        {
            "name": "small",
            "space": {"target": "nasflow.space.ready:mlp"},
            "evaluator": {"kind": "classification", "data": data, **evaluator},
            "objectives": [objective],
        }
    )


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        *(("val_accuracy", "maximize"), ("val_f1", "maximize"), ("val_auroc", "maximize"), ("val_r2", "maximize")),
        *(("val_loss", "minimize"), ("val_rmse", "minimize"), ("parameters", "minimize"), ("val/error", "minimize")),
        *(
            ("Test_Top5_Acc", "maximize"),
            ("word_error_rate", "minimize"),
            ("epoch_seconds", "minimize"),
            ("val_f1_score", "maximize"),
        ),
    ],
)
def test_a_metrics_name_says_which_way_is_better(metric: str, direction: str) -> None:
    assert config({"metric": metric}).objectives[0].direction == direction


@pytest.mark.parametrize(
    "metric",
    [
        *("anything", "accuracy_loss", "val_q", "gloss", "accumulated", "score", "time"),
        *("neg_mean_squared_error", "val_brier_score", "inverse_accuracy"),
        *("val_accuracy_std", "val_accuracy_stdev", "val_acc_var", "val_accuracy_variance", "val_accuracy_gap"),
        *("accuracy_drop", "acc_diff", "delta_auc", "val_f1_spread", "val_f1_range", "loss_ratio"),
    ],
)
def test_another_name_needs_a_direction(metric: str) -> None:
    with pytest.raises(ConfigError, match=f"objectives.0: say which way '{metric}' is better: give 'direction'"):
        config({"metric": metric})
    for direction in ("minimize", "maximize"):
        assert config({"metric": metric, "direction": direction}).objectives[0].direction == direction


def test_everywhere_a_metric_is_named() -> None:
    found: Any = config(
        {"metric": "val_loss", "direction": "maximize"},
        early_stopping={"metric": "val_accuracy"},
        schedule={"name": "plateau", "metric": "val_accuracy"},
    )
    assert found.objectives[0].direction == "maximize", "what is given counts"
    assert found.evaluator.early_stopping.direction == "maximize"
    assert found.evaluator.schedule.direction == "maximize"
    assert config({}, early_stopping={}).evaluator.early_stopping.direction == "minimize"  # type: ignore[union-attr]


SMALL: dict[str, Any] = {
    "name": "small",
    "space": {"target": "nasflow.space.ready:mlp"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:Digits"}},
}


def test_code_gets_the_same_params_here_and_in_jobs() -> None:
    given = {"until": date(2024, 6, 30), "at": datetime(2024, 6, 30, 12, tzinfo=UTC), "in": [Path("data"), ((3, 3), 1)]}
    space = {**SMALL["space"], "params": given}
    made = parse_config({**SMALL, "space": space, "begin_with": [{"kernel": (3, 3)}], "work_dir": Path("/runs")})
    assert made == SearchConfig.model_validate_json(made.model_dump_json())
    assert made.space.params == {
        "until": "2024-06-30",
        "at": "2024-06-30T12:00:00Z",
        "in": ["data", [[3, 3], 1]],
    }
    assert made.work_dir == Path("/runs") and given["until"] == date(2024, 6, 30)


def test_paths_are_in_the_folder_where_the_search_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a thread builds a model in the folder of its code."""
    (tmp_path / "code").mkdir()
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code" / "small.yaml").write_text(json.dumps(SMALL))
    with in_folder(tmp_path / "code"), ThreadPoolExecutor(1) as another:
        given, read = (
            another.submit(parse_config, SMALL).result(),
            another.submit(load_config, Path("small.yaml")).result(),
        )
        inside = load_config(Path("small.yaml"))  # as the code that is in the folder reads one beside it
    assert given.work_dir == read.work_dir == tmp_path / "nasflow-runs"
    assert given.base_dir == read.base_dir == tmp_path
    assert inside.base_dir == tmp_path / "code"
    assert {str(made.store) for made in (given, read, inside)} == {f"sqlite:///{tmp_path}/nasflow.db"}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sqlite:///nas.db", "sqlite:///{folder}/nas.db"),
        ("sqlite+pysqlite:///deep/nas.db?timeout=5", "sqlite+pysqlite:///{folder}/deep/nas.db?timeout=5"),
        *((url, url) for url in ("sqlite:////data/nas.db", "sqlite:///:memory:", "sqlite:///file:nas.db?uri=true")),
        *((url, url) for url in ("sqlite://", "sqlite:///", "postgresql://db/nas", "postgresql:///nas")),
    ],
)
def test_a_relative_sqlite_file_becomes_absolute(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parsed = parse_config({**SMALL, "store": given})
    assert isinstance(parsed.store, SecretUrl)
    assert parsed.store.get_secret_value() == meant.format(folder=tmp_path)
    assert parse_config({**SMALL, "store": {"env": "URL"}}).store == EnvironmentSecret(env="URL")


def test_a_folder_that_no_url_can_hold_keeps_a_store_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "what?").mkdir()
    monkeypatch.chdir(tmp_path / "what?")
    assert str(parse_config(SMALL).store) == "sqlite:///nasflow.db"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_named_as_text_or_as_a_path(kind: type[str | Path], tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    assert load_config(kind(tmp_path / "small.yaml")).base_dir == tmp_path
