"""Kubeconfigs for a real API server: who is at fault is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from nasflow.errors import ServiceError
from tests.training_service.kubernetes.service import make
from tests.training_service.stranger.kubeconfigs import written

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]  # the first test to start may have to build Kubernetes
PLUGIN = {"apiVersion": "client.authentication.k8s.io/v1"}


@pytest.fixture
def real(server: Any, tmp_path: Path) -> Callable[..., str]:
    """Writes a kubeconfig for the real API server."""
    known = yaml.safe_load(Path(server.kubeconfig()).read_text())["clusters"][0]["cluster"]
    return lambda user, **cluster: written(tmp_path, user, **{**known, **cluster})


@pytest.mark.parametrize("command", ["no-such-plugin", "false", "true"])
def test_the_program_of_a_user_that_gives_no_token(root: Path, real: Callable[..., str], command: str) -> None:
    """Without it the server takes the user for nobody, who lacks rights: but no Role would mend this."""
    file = real({"exec": {**PLUGIN, "command": command}})
    with pytest.raises(ServiceError, match=rf"^training_service\.kubeconfig: {file} gives no credentials, because its"):
        make(root, kubeconfig=file).validate()


def test_a_context_whose_user_is_not_there(root: Path, real: Callable[..., str]) -> None:
    said = r"^training_service\.kubeconfig: it gives no credentials for https://\S+; add the user that its context"
    with pytest.raises(ServiceError, match=said):
        make(root, kubeconfig=real(None)).validate()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"certificate-authority": None}, r"no secure connection to https://\S+: .*CERTIFICATE_VERIFY_FAILED"),
        ({"server": "/k8s/clusters/c-1"}, "what answers at https://.* is no API server of Kubernetes.*HTTP 404"),
        ({"server": "http"}, r"(what answers at )?http://\S+ (is no|breaks) .*correct its cluster's server$"),
    ],
    ids=["certificate", "path", "no-tls"],
)
def test_where_the_server_is_not(root: Path, real: Callable[..., str], change: dict[str, Any], said: str) -> None:
    user = {"token": "admin-token"}
    if "server" in change:
        server = yaml.safe_load(Path(real(user)).read_text())["clusters"][0]["cluster"]["server"]
        other = change["server"]
        change = {"server": server + other if other.startswith("/") else server.replace("https", other)}
    with pytest.raises(ServiceError, match=rf"^training_service\.kubeconfig: {said}"):
        make(root, kubeconfig=real(user, **change)).validate()


def test_the_end_of_its_line_is_no_part_of_a_token(root: Path, real: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("admin-token\n")
    make(root, kubeconfig=real({"tokenFile": str(tmp_path / "token")})).validate()
