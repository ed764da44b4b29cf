"""The token of requests to Azure: of the config, and of azure-identity."""

import logging
import sys

import pytest

from nasflow.errors import ServiceError
from nasflow.testing.training_service import (
    epochs,
    finish,
    script,
    until,
)
from tests.hosted.azureml.service import TOKEN, make
from tests.hosted.emulator import Fault


def test_the_account_of_azure_identity(root, azure, monkeypatch):
    """Here that of a machine, by the identity service of an emulated one."""
    monkeypatch.setenv("IDENTITY_ENDPOINT", azure.identity)
    monkeypatch.setenv("IDENTITY_HEADER", "machine")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    azure.requests.clear()
    service = make(root, token=None)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    asked = [each for each in azure.requests if each.path == "/identity/token"]
    assert len(asked) == 1 and asked[0].query["resource"] == azure.url
    azure.token = "renewed"
    with pytest.raises(ServiceError, match=r"training_service\.token: Azure does not take it"):
        service.prepare()
    service.prepare()  # with a new one
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


def test_an_account_that_is_not_found_is_said(root, azure, monkeypatch):
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ServiceError, match=r"^training_service\.token: azure-identity finds no account .*`az login`"):
        make(root, token=None).validate()
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(ServiceError, match=r"'azureml' needs the module 'azure.identity'; install nasflow\[azureml\]"):
        make(root, token=None).validate()


def test_an_account_that_can_not_be_renewed_keeps_its_token(root, azure, monkeypatch):
    monkeypatch.setenv("IDENTITY_ENDPOINT", azure.identity)
    monkeypatch.setenv("IDENTITY_HEADER", "machine")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    service = make(root, token=None)
    service.validate()
    azure.faults = [Fault("GET", "/identity/token", code=400, times=1e9)]
    service._token._credential, service._token._renew_at = None, 0.0
    service.validate()
    assert azure.faults[0].times < 1e9


def test_the_token_is_shown_nowhere(root, azure, caplog):
    caplog.set_level(logging.DEBUG)
    service = make(root)
    azure.faults = [Fault("GET", "/jobs$", code=400, body=f'{{"error": {{"message": "no {TOKEN}"}}}}'.encode())]
    with pytest.raises(ServiceError) as refused:
        service._look()
    assert "HTTP 400: no ***" in str(refused.value)
    azure.faults = [Fault(code=500, body=f"no {TOKEN}".encode())]
    service.prepare()
    handle = service.submit(script("job"))
    assert finish(service, handle).exit_code == 0
    assert "HTTP Request: PUT" in caplog.text
    shown = caplog.text + repr(service._config) + service._config.model_dump_json()
    assert TOKEN not in shown
    assert not [file for file in root.rglob("*") if file.is_file() and TOKEN in file.read_text(errors="replace")]
