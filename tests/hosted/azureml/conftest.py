"""An emulator of Azure ML for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosted.azureml.emulator import Azureml
from tests.hosted.azureml.service import TOKEN, URL, make


@pytest.fixture(scope="session", autouse=True)
def service_of_all() -> Iterator[Azureml]:
    with Azureml(TOKEN).running() as azure, pytest.MonkeyPatch.context() as patch:
        assert isinstance(azure, Azureml)
        patch.setenv(URL, azure.url)
        patch.setenv("AZURE_TOKEN", TOKEN)
        yield azure


@pytest.fixture
def azure(service_of_all: Azureml) -> Iterator[Azureml]:
    yield service_of_all
    service_of_all.places, service_of_all.quota = 8, 10**6


@pytest.fixture
def root(tmp_path: Path, azure: Azureml) -> Iterator[Path]:
    folder = tmp_path / "it's a $(root) 100%d"
    yield folder
    azure.faults.clear()
    azure.token = TOKEN
    make(folder).cleanup()
