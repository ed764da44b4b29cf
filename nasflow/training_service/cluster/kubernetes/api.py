"""Requests to the API server of Kubernetes, for the objects of one namespace, which are plain JSON here."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config

from nasflow.clean_text import clean_text
from nasflow.errors import ServiceError
from nasflow.training_service.cluster.base import ClusterSilentError

Object = dict[str, Any]

_TIMEOUT = (10.0, 30.0)  # seconds for a connection, and for an answer
_PAGE = 500  # objects
_ROLE = "docs/kubernetes.md has the Role that is needed"
_CORE = ("pods", "secrets", "events")  # the resources of the group without a name
_NEW = ("ttlSecondsAfterFinished",)  # fields that servers may lack: this one before 1.23
_DEFAULT = "~/.kube/config"
_NO_KUBECONFIG = (TypeError, KeyError, AttributeError)  # what its client raises upon a file of another form
_IN_POD = "KUBERNETES_SERVICE_HOST"


class RefusedError(ServiceError):
    """The API server refuses a request. `status` is HTTP's."""

    def __init__(self, text: str, status: int):
        super().__init__(text)
        self.status = status


class KubernetesApi:
    """The API server, as one user, for one namespace. Each request has a time limit.

    Methods raise ClusterSilentError if the server does not answer, RefusedError if it refuses the request, and
    ServiceError if the kubeconfig can't be used.

    Args:
        kubeconfig: a file; None for the default one, or for the service account of the pod that this process is in.
        context: of the kubeconfig; None for its current one.
        namespace: of all objects.
        versions: group and version of each resource that is asked for, but for pods, secrets and events, as
            `{"jobs": "batch/v1"}`.
    """

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str, versions: Mapping[str, str]):
        self._kubeconfig, self._context, self._namespace = kubeconfig, context, namespace
        self._versions = versions
        self._client: client.ApiClient | None = None

    def list(self, resource: str, labels: str = "", fields: str = "") -> list[Object]:
        """Return the objects of a resource, such as `pods`, that a label selector and a field selector select."""
        found: list[Object] = []
        more = ""
        while True:
            query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(_PAGE), "continue": more}
            page = self._request("GET", self._path(resource), {key: value for key, value in query.items() if value})
            found += page.get("items") or []
            more = page.get("metadata", {}).get("continue", "")
            if not more:
                return found

    def create(self, resource: str, body: Object, *, dry_run: bool = False) -> None:
        """Create an object; with `dry_run`, only let the server check it, and see that it knows all fields."""
        made = self._request("POST", self._path(resource), {"dryRun": "All"} if dry_run else {}, body)
        if dry_run and (unknown := _dropped(body, made)):
            raise RefusedError(
                f"training_service: Kubernetes does not know the field {unknown}; see to its spelling and place", 422
            )

    def replace(self, resource: str, body: Object) -> None:
        """Replace an object by name."""
        self._request("PUT", self._path(resource, body["metadata"]["name"]), {}, body)

    def delete(self, resource: str, name: str) -> bool:
        """Delete an object, and what it owns in the background. Return whether there was one."""
        try:
            self._request("DELETE", self._path(resource, name), {"propagationPolicy": "Background"})
        except RefusedError as error:
            if error.status != 404:
                raise
            return False
        return True

    def forbidden(self, rights: Sequence[tuple[str, str]]) -> Iterator[str]:
        """Yield those of the rights (verb and resource) that this user lacks, such as `delete jobs`."""
        for verb, resource in rights:
            group = "" if resource in _CORE else self._versions[resource].partition("/")[0]
            wanted = {"namespace": self._namespace, "verb": verb, "group": group, "resource": resource}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": wanted},
            }
            answer = self._request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, review)
            if not answer.get("status", {}).get("allowed"):
                yield f"{verb} {resource}"

    def _path(self, resource: str, name: str = "") -> str:
        home = "/api/v1" if resource in _CORE else f"/apis/{self._versions[resource]}"
        path = f"{home}/namespaces/{self._namespace}/{resource}"
        return f"{path}/{name}" if name else path

    def _request(self, method: str, path: str, query: Mapping[str, str], body: Object | None = None) -> Object:
        try:
            return self._send(method, path, query, body)
        except RefusedError as error:
            if error.status != 401:
                raise
        self._client = None  # its token may have expired; read it again
        return self._send(method, path, query, body)

    def _send(self, method: str, path: str, query: Mapping[str, str], body: Object | None) -> Object:
        connected = self._connect()
        where = connected.configuration.host
        try:
            answer = connected.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=_TIMEOUT,
            )
            parsed = json.loads(answer.data)
        except client.ApiException as error:
            raise self._refusal(error, where) from error
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise ClusterSilentError(
                f"training_service: Kubernetes' API server at {where} does not answer: {_line(str(error))}"
            ) from error
        return parsed if isinstance(parsed, dict) else {}

    def _refusal(self, error: client.ApiException, where: str) -> ServiceError:
        """Return the error for an answer that is none of HTTP's 200 to 299."""
        status, text = int(error.status or 0), _message(error)
        if status in (0, 408, 410, 429) or status >= 500:
            return ClusterSilentError(f"training_service: Kubernetes' API server at {where} can't answer now: {text}")
        if status == 401:
            return RefusedError(f"training_service.kubeconfig: {where} does not know this user: {text}", status)
        if status == 403 and "exceeded quota" in text:
            return RefusedError(f"training_service.max_jobs: the namespace's quota is used up: {text}", status)
        if status == 403:
            return RefusedError(f"training_service: Kubernetes forbids this: {text}; {_ROLE}", status)
        if status == 404 and f'namespaces "{self._namespace}" not found' in text:
            return RefusedError(f"training_service.namespace: there is no namespace '{self._namespace}'", status)
        if status == 404 and error.body in (b"404 page not found\n", "404 page not found\n"):
            return RefusedError(
                f"training_service.kind: {where} does not know such jobs; install their operator", status
            )
        return RefusedError(f"training_service: Kubernetes refuses such jobs: {text}", status)

    def _connect(self) -> client.ApiClient:
        if self._client is None:
            settings = client.Configuration()
            try:
                self._load(settings)
            except (config.ConfigException, yaml.YAMLError, OSError, ValueError, *_NO_KUBECONFIG) as error:
                why = "it is no kubeconfig" if isinstance(error, _NO_KUBECONFIG) else _line(str(error))
                raise ServiceError(
                    f"training_service.kubeconfig: {self._kubeconfig or 'the default one'} can't be used: {why}"
                ) from error
            settings.retries = 1
            self._client = client.ApiClient(settings)
            self._client.user_agent = "nasflow"
        return self._client

    def _load(self, settings: client.Configuration) -> None:
        if self._kubeconfig is None and not _default_exists() and _IN_POD in os.environ:
            config.load_incluster_config(client_configuration=settings)
            return
        named = self._kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT  # several, as in PATH, are merged
        files = os.pathsep.join(str(Path(each).expanduser()) for each in named.split(os.pathsep) if each)
        config.load_kube_config(files, self._context, client_configuration=settings)


def rights_text(missing: Sequence[str], namespace: str) -> str:
    """Return the sentence that names missing rights."""
    return f"training_service.namespace: in namespace '{namespace}' this user may not {', '.join(missing)}; {_ROLE}"


def _default_exists() -> bool:
    named = (os.environ.get("KUBECONFIG") or _DEFAULT).split(os.pathsep)
    return any(Path(each).expanduser().exists() for each in named if each)


def _dropped(sent: Any, made: Any, path: str = "") -> str:
    """Return the path of the first field that an object was sent with and made without; empty if there is none.

    Servers drop fields that they do not know, and may leave out empty ones.
    """
    if isinstance(sent, dict) and isinstance(made, dict):
        parts = [
            (f"{path}.{key}".lstrip("."), value, made.get(key))
            for key, value in sent.items()
            if value and key not in _NEW
        ]
    elif isinstance(sent, list) and isinstance(made, list):
        parts = [(f"{path}[{place}]", *pair) for place, pair in enumerate(zip(sent, made, strict=False))]
    else:
        return path if made is None else ""
    return next(filter(None, (_dropped(value, other, place) for place, value, other in parts)), "")


def _message(error: client.ApiException) -> str:
    """Return what the server says in its answer, a JSON object, or HTTP's own words."""
    try:
        text = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        text = error.reason
    return _line(str(text))


def _line(text: str) -> str:
    return clean_text(" ".join(text.split()))[:500]
