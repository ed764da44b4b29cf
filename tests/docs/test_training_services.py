"""What docs/training-services.md and the pages of other services say of configs is so, and the examples work."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import get_args

import pytest
import yaml

from nasflow.config.search import parse_config
from nasflow.config.services.common import CodeConfig
from nasflow.config.services.ssh import SshHostConfig
from nasflow.config.services.union import ServiceConfig
from nasflow.load_target import load_target
from nasflow.training_service.base import TrainingService
from nasflow.training_service.make import make_service
from nasflow.training_service.ship.code_dir import LEFT_OUT
from nasflow.training_service.ssh.probe import NEEDED

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "training-services.md").read_text()
NAMED = re.compile(r"^```python\n# (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
OTHERS = "\n## Next page\n".join(
    (ROOT / "docs" / name).read_text() for name in ("hosted-services.md", "kubernetes-operators.md")
)
SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", f"{TEXT}\n{OTHERS}", flags=re.MULTILINE | re.DOTALL))
CLASSES = {section.model_fields["kind"].default: section for section in get_args(get_args(ServiceConfig)[0])}
SEARCH = {
    "name": "any",
    "space": {"target": "nasflow.space.ready:mlp"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
}


def yaml_blocks(text: str) -> list[dict]:
    return [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)]


def named_blocks(name: str) -> list[str]:
    return [block["text"] for block in NAMED.finditer(TEXT) if block["name"] == name]


def test_it_tells_of_every_kind_and_of_no_other():
    chosen = re.findall(r"^\| `(\w+)` \|", TEXT.partition("## Choosing one")[2].partition("## ")[0], re.MULTILINE)
    assert sorted(chosen) == sorted(SECTIONS) == sorted(CLASSES)


@pytest.mark.parametrize("kind", sorted(SECTIONS))
def test_its_configs_parse(kind):
    (block,) = yaml_blocks(SECTIONS[kind])
    assert list(block) == ["training_service"]
    assert isinstance(parse_config({**SEARCH, **block}).training_service, CLASSES[kind])


def test_no_config_of_it_is_left_untested():
    assert len(yaml_blocks(TEXT)) + len(yaml_blocks(OTHERS)) == len(SECTIONS) + 1
    assert parse_config({**SEARCH, **yaml_blocks(TEXT)[0]})


@pytest.mark.parametrize("kind", sorted(SECTIONS))
def test_it_tells_of_every_key_and_of_no_other(kind):
    """A key stands in the first column of a table of the kind's section."""
    known = set(CLASSES[kind].model_fields) - {"kind"}
    if kind == "ssh":
        known |= set(SshHostConfig.model_fields)
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", SECTIONS[kind], flags=re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"\w+", row)} == known


def test_its_defaults_are_those_of_the_config():
    """Numbers in brackets after a single key."""
    found = 0
    for kind, text in SECTIONS.items():
        fields = {**CLASSES[kind].model_fields, **(SshHostConfig.model_fields if kind == "ssh" else {})}
        for key, default in re.findall(r"^\| `(\w+)` \| .*?\(`?(\d+|true|false)\b`?[^)]*\)", text, flags=re.MULTILINE):
            if key != "code":  # a section of its own
                assert fields[key].default == yaml.safe_load(default), f"{kind}: {key}"
                found += 1
    assert found >= 10
    limits = re.search(r"`max_files` \((\d+)\), `max_megabytes` \((\d+)\)", TEXT)
    assert CodeConfig() == CodeConfig(max_files=int(limits[1]), max_megabytes=float(limits[2]))


def test_it_names_what_hosts_need_and_what_is_left_out():
    assert f"$ pip install {' '.join(NEEDED)}\n" in TEXT
    shipped = TEXT.partition("### What is shipped")[2].partition("\n#")[0]
    unnamed = {pattern.strip("/*") for pattern in LEFT_OUT} - set(re.findall(r"[\w.-]+", shipped))
    assert unnamed <= {".py[co]", ".DS_Store"}


def test_what_it_quotes_is_the_debug_service():
    source = (ROOT / "nasflow" / "training_service" / "debug.py").read_text()
    quoted = named_blocks("debug.py")
    assert len(quoted) == 3
    for block in quoted:
        assert any(textwrap.indent(block, prefix) in source for prefix in ("    ", "        ")), block
    assert len(source.splitlines()) < 100


def test_it_names_every_method_of_the_contract():
    listed = re.search(r"eleven methods: ([^.]*)\.", TEXT)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == TrainingService.__abstractmethods__
    assert len(TrainingService.__abstractmethods__) == 11


def test_its_service_is_one_and_keeps_the_contract(tmp_path):
    for name in ("my_service.py", "test_my_service.py"):
        (block,) = named_blocks(name)
        (tmp_path / name).write_text(block)
    config = parse_config({**SEARCH, **yaml_blocks(SECTIONS["custom"])[0]}).training_service
    service = make_service(config, tmp_path / "root", tmp_path)
    assert isinstance(service, load_target("my_service.py:MyService", tmp_path))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        f"--rootdir={tmp_path}",
    ]
    done = subprocess.run([*command, tmp_path / "test_my_service.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 12


def test_the_files_and_anchors_it_names_exist():
    named = set(re.findall(r"`((?:nasflow|tests)/[\w./-]+|[A-Z]+\.md)`", TEXT))
    assert len(named) >= 3
    assert not {name for name in named if not (ROOT / name).exists()}
    headings = {re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in re.findall(r"^#+ (.*)$", TEXT, re.M)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) <= headings
