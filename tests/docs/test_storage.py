"""The page about storage says what is so."""

import re
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.config.services.union import ServiceConfig

PAGE = (Path(__file__).parents[2] / "docs" / "storage.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_its_configs_parse(block):
    config = TypeAdapter(ServiceConfig).validate_python(yaml.safe_load(block)["training_service"])
    assert config.storage is not None


def test_it_has_every_key_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE))
    fields = set(ObjectStoreConfig.model_fields) - {"url", "options", "code"}
    assert rows.keys() - {"storage", "url"} == fields
    for name in fields - {"scratch", "retry_for"}:
        default = ObjectStoreConfig.model_fields[name].default
        assert rows[name].strip("`") == (f"{default:g}" if isinstance(default, float) else default)
    assert ObjectStoreConfig.model_fields["retry_for"].default == 15 * 60 and rows["retry_for"] == "`15m`"
