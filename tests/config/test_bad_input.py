"""Configs that can't be read or recorded: one sentence each, and exit code 2."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from nasflow.checkpoint.url_store import UrlStore
from nasflow.config.search import SearchConfig, load_config, parse_config
from nasflow.errors import ConfigError
from nasflow.flows.cli import main
from nasflow.load_target import load_target

TEXT = """
name: small
space: {target: nasflow.space.ready:mlp, params: {given: %s}}
evaluator: {kind: classification, data: {target: nasflow.evaluator.data:Digits}}
"""
NINE = [", ".join([f"*a{n}"] * 9) for n in range(9)]
BOMB = f"[&a0 [1, 1], {', '.join(f'&a{n + 1} [{nine}]' for n, nine in enumerate(NINE))}]"
MERGE_BOMB = f"[&a0 {{k: 1}}, {', '.join(f'&a{n + 1} {{<<: [{nine}]}}' for n, nine in enumerate(NINE))}]"
TEXT_BOMB = f"[&long {'x' * 10_000}, {', '.join(['*long'] * 200)}]"


def values(**changes: Any) -> dict[str, Any]:
    data = {"target": "nasflow.evaluator.data:Digits"}
    return {
        "name": "small",
        "space": {"target": "nasflow.space.ready:mlp"},
        "evaluator": {"kind": "classification", "data": data},
        **changes,
    }


def in_lists(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value]
    return value


def sentence_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: Path) -> str:
    """What `nasflow validate` says of a file that it refuses."""
    monkeypatch.setattr(sys, "argv", ["nasflow", "validate", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line.startswith(f"error: {file}: ")
    assert len(line) < 700
    return line.removeprefix(f"error: {file}: ")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("2024-13-45", "'2024-13-45' is no timestamp"),
        ("9" * 5000, "a number of 5,000 characters"),
        ("0o" + "7" * 5000, "a number of 5,002 characters"),
        ("0x" + "f" * 5000, "a number of 5,002 characters"),
        ("!!int abc", "'abc' is no int"),
        ("!!float abc", "'abc' is no float"),
        ("!!bool abc", "'abc' is no bool"),
        ("!!timestamp foo", "'foo' is no timestamp"),
        ("!!binary 'aGVsbG8='", "tag:yaml.org,2002:binary"),
        ("!!set {a, b}", "tag:yaml.org,2002:set"),
        ("!!python/object/apply:os.system [true]", "tag:yaml.org,2002:python/object/apply:os.system"),
        ("[" * 3000 + "]" * 3000, "nested more than 50 deep"),
        ("{a: " * 3000 + "}" * 3000, "nested more than 50 deep"),
        (BOMB, "more than 1,000,000 characters"),
        (MERGE_BOMB, "more than 1,000,000 characters"),
        (MERGE_BOMB.replace("*a8]", "*a8, *a8, *a8, *a8]"), "more than 1,000,000 characters"),
        (TEXT_BOMB, "more than 1,000,000 characters"),
        ("&again [*again]", "'again' contains itself"),
        ('"\\ud800"', r"space.params.given: it has a character that is no text (\ud800)"),
        ('{"\\ud800": 1}', "it has a character that is no text"),
        ('"a\\0b"', "space.params.given: it has a NUL character"),
        ("1:\ufeff\n b: 2", "expected ',' or '}', but got ':' in line 4"),
        (".inf", "space.params.given: inf is no number that can be recorded"),
        ("{1: one, a: two}", "space.params.given: the key 1 should be text"),
        ("18446744073709551617", "space.params.given: 18446744073709551617 has more than 64 bits"),
    ],
    ids=lambda value: value[:20],
)
def test_what_can_t_be_read_or_recorded(tmp_path, capsys, monkeypatch, given, reason):
    file = tmp_path / "small.yaml"
    file.write_text(TEXT % given)
    assert reason in sentence_of(capsys, monkeypatch, file)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "utf-32"])
def test_other_encodings(tmp_path, capsys, monkeypatch, encoding):
    file = tmp_path / "small.yaml"
    file.write_bytes((TEXT % "café").encode(encoding))
    assert sentence_of(capsys, monkeypatch, file).startswith("it is not UTF-8 text")


def test_utf_8_with_and_without_its_mark(tmp_path):
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "small.yaml").write_bytes((TEXT % "café").encode(encoding))
        assert load_config(tmp_path / "small.yaml").space.params == {"given": "café"}


def test_a_file_that_is_no_config_is_not_read_whole(tmp_path, capsys, monkeypatch):
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(2**40)
    assert "more than 1,000,000 characters" in sentence_of(capsys, monkeypatch, tmp_path / "large.yaml")


def test_aliases_within_the_limit(tmp_path):
    (tmp_path / "small.yaml").write_text(TEXT % "[&a {b: 1}, *a, {<<: *a, c: 2}]")
    given = load_config(tmp_path / "small.yaml").space.params["given"]
    assert given == [{"b": 1}, {"b": 1}, {"b": 1, "c": 2}]


@pytest.mark.parametrize("key", ["work_dir", "base_dir"])
def test_homes_of_nobody(tmp_path, capsys, monkeypatch, key):
    file = tmp_path / "small.yaml"
    file.write_text(f"{TEXT % 1}{key}: ~nobodyhere/runs\n")
    assert sentence_of(capsys, monkeypatch, file) == (
        f"{key}: there is no home of that user here; write the path out (got '~nobodyhere/runs')"
    )


def test_the_parameters_of_a_deployment_have_the_same_limits():
    for given, reason in [
        (in_lists(1, 3000), "nested more than 50 deep"),
        ("x" * 1_000_001, "more than 1,000,000 characters"),
        (10**5000, "has more than 64 bits"),
        (math.nan, "nan is no number that can be recorded"),
        ("\ud800", "it has a character that is no text"),
        (b"text", "a bytes can't be recorded"),
        ({1: 2}, "the key 1 should be text"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            parse_config(values(space={"target": "a:b", "params": {"given": given}}))
    contains_itself: list[Any] = []
    contains_itself.append(contains_itself)
    with pytest.raises(ConfigError, match="nested more than 50 deep"):
        parse_config(values(begin_with=[{"given": contains_itself}]))
    with pytest.raises(ConfigError, match=r"checkpoint\.url: it has a character that is no text"):
        parse_config(values(checkpoint={"url": "s3://\ud800"}))


@pytest.mark.parametrize("text", ["nan", "inf", "1e999"])
def test_text_that_is_read_as_a_number_that_is_none(text):
    """YAML 1.1 takes `1e999` for text, and pydantic takes that for a number."""
    with pytest.raises(ConfigError, match=r"budget\.hours: Input should be a finite number"):
        parse_config(values(budget={"rounds": 1, "hours": text}))
    evaluator = values()["evaluator"] | {"optimizer": {"lr": {"float": [0, text]}}}
    with pytest.raises(ConfigError, match=r"evaluator\.optimizer\.lr\.1: Input should be a finite number"):
        parse_config(values(evaluator=evaluator))


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ({"kind": "local", "slots": True}, "training_service: 'slots' is true or false; give a number"),
        ({"kind": "local", "gpus": [0, True]}, "training_service: 'gpus' is true or false; give a number"),
        ({"kind": "slurm", "poll_seconds": False}, "training_service: 'poll_seconds' is true or false; give a number"),
        ({"kind": "slurm", "abandoned_after": True}, "'abandoned_after' is true or false"),
        ({"kind": "local", "slots": 10**12}, r"training_service\.slots: Input should be less than or equal to 10000"),
        (
            [{"kind": "slurm", "gpus_per_job": 2}, {"kind": "local", "slots": 1}],
            r"training_service: a job would have unlike numbers of devices \(slurm 2, local 1\)",
        ),
        (
            {"kind": "ray", "gpus_per_job": 1.5},
            r"training_service\.gpus_per_job: Ray gives a part of one GPU, or whole",
        ),
        ({"kind": "slurm", "max_jobs": 10**12}, r"training_service\.max_jobs: Input should be less than or equal to"),
        ({"kind": "ssh", "hosts": [{"host": "a", "slots": 10**12}]}, r"hosts\.0\.slots: Input should be less than"),
    ],
    ids=str,
)
def test_numbers_of_a_service_that_can_t_be_meant(service, reason):
    """YAML reads `yes` and `on` as true, which pydantic would read as 1."""
    with pytest.raises(ConfigError, match=reason):
        parse_config(values(training_service=service))


def test_a_searched_number_is_not_true_or_false():
    for lr in (True, {"pick": [0.1, True]}):
        with pytest.raises(ConfigError, match=r"'(lr|pick)' is true or false; give a number"):
            parse_config(values(evaluator=values()["evaluator"] | {"optimizer": {"lr": lr}}))
    assert parse_config(values(space={"target": "a:b", "params": {"given": [True]}})).space.params == {"given": [True]}


@pytest.mark.parametrize(
    "url",
    [
        *("https://", "https:///rest", "https://[::1", "https://pai:99999", "https://pai:0", "https://pai:x"),
        *("https://p ai", "https://pai\n", "https://pai/\x1b[31m"),
    ],
)
def test_a_url_of_a_hosted_service_that_can_not_be_one(url):
    service = {"kind": "openpai", "url": url, "user": "ada", "token": {"env": "TOKEN"}, "image": "i"}
    with pytest.raises(ConfigError, match=r"training_service\.url: has no host, or a port or characters") as refused:
        parse_config(values(training_service=service))
    assert str(refused.value).isprintable()


def test_sections_that_are_objects_already():
    config = parse_config(values())
    again = SearchConfig(name=config.name, space=config.space, evaluator=config.evaluator, work_dir=Path("here"))
    assert again.work_dir == Path("here").absolute()


def test_a_sentence_is_short_and_one_line():
    many = {f"key{n}": 1 for n in range(10_000)}
    for changes in (
        {"a\nb\x1b[31m": 1},
        {"x" * 100_000: 1},
        {"store": ["x" * 100_000]},
        {"checkpoint": {"url": "x" * 100_000}},
        {"checkpoint": {"url": "memory://" + "a::" * 1000}},
        {"strategy": {"kind": "x" * 100_000}},
        many,
    ):
        with pytest.raises(ConfigError) as refused:
            parse_config(values(**changes))
        assert len(str(refused.value)) < 20_000
        assert str(refused.value).isprintable()
    assert str(refused.value).endswith("; and 9,980 more")


def test_an_error_of_yaml_quotes_no_line(tmp_path):
    """A line may have a password in it."""
    (tmp_path / "search.yaml").write_text("name: broken\nstore: 'postgresql://me:hush@host/db\nspace: [\n")
    with pytest.raises(ConfigError, match=r"not valid YAML: .* in line \d+, column \d+$") as refused:
        load_config(tmp_path / "search.yaml")
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "place", ["a", "a.b", "nasflow.evaluator.data" + ".data" * 8000, "x" * 10_000, "x/" * 5000 + "y.py"]
)
@pytest.mark.parametrize("name", ["DigitsRows" + " !!bool" * 1500, "\U0010ffff"])
def test_targets_that_no_one_meant(tmp_path, place, name):
    with pytest.raises(ConfigError) as refused:
        load_target(f"{place}:{name}", tmp_path)
    assert len(str(refused.value)) < 2000
    assert str(refused.value).isprintable()


def test_a_url_that_chains_too_many_file_systems_opens_no_store():
    with pytest.raises(ValueError, match="'::' chains more than 8 file systems"):
        UrlStore("memory://" + "a::" * 1000)


@pytest.mark.parametrize("precision", ["16-true", 16])
def test_half_precision_is_refused_with_what_to_use(precision):
    with pytest.raises(ConfigError, match=r"evaluator\.precision: weights in half precision can't .*; use 16-mixed"):
        parse_config(values(evaluator={"kind": "classification", "data": {"target": "a.py:b"}, "precision": precision}))
