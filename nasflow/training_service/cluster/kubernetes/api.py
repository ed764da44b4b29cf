"""Requests to the API server of Kubernetes, for the objects of one namespace, which are plain JSON here."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import urllib3
from kubernetes import client

from nasflow.errors import ServiceError
from nasflow.training_service.cluster.base import ClusterFullError, ClusterSilentError
from nasflow.training_service.cluster.kubernetes.kubeconfig import knows_user, lacks_proxy, quoted, settings_of

Object = dict[str, Any]

_TIMEOUT = (10.0, 30.0)  # seconds for a connection, and for an answer
_PAGE = 500  # objects
_ROLE = "docs/kubernetes.md has the Role that is needed"
_CORE = ("pods", "secrets", "events")  # the resources of the group without a name
_NEW = ("ttlSecondsAfterFinished",)  # fields that servers may lack: this one before 1.23


class RefusedError(ServiceError):
    """The API server refuses a request, or (401) the kubeconfig gives no user to ask as.

    `status` is HTTP's; `exists` says that there is an object of this name.
    """

    def __init__(self, text: str, status: int, *, exists: bool = False):
        super().__init__(text)
        self.status, self.exists = status, exists


class KubernetesApi:
    """The API server, as one user, for one namespace. Each request has a time limit.

    Methods raise ClusterSilentError if the server does not answer, ClusterFullError if a quota is used up, and
    RefusedError if the server refuses the request for another reason or the kubeconfig can't be used.

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
            more = (page.get("metadata") or {}).get("continue", "")
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
            if not (answer.get("status") or {}).get("allowed"):
                yield f"{verb} {resource}"

    def _path(self, resource: str, name: str = "") -> str:
        home = "/api/v1" if resource in _CORE else f"/apis/{self._versions[resource]}"
        path = f"{home}/namespaces/{self._namespace}/{resource}"
        return f"{path}/{name}" if name else path

    def _request(self, method: str, path: str, query: Mapping[str, str], body: Object | None = None) -> Object:
        try:
            return self._send(method, path, query, body)
        except RefusedError as error:
            if error.status != 401 or self._client is None:
                raise
        self._client = None  # its token may have expired; read it again
        return self._send(method, path, query, body)

    def _send(self, method: str, path: str, query: Mapping[str, str], body: Object | None) -> Object:
        connected = self._connect()
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
            parsed = _object(answer.data)
        except client.ApiException as error:
            raise self._refusal(error, connected.configuration) from error
        except urllib3.exceptions.MaxRetryError as error:
            raise ClusterSilentError(_unreached(error.reason or error, connected.configuration)) from error
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise ClusterSilentError(_unreached(error, connected.configuration)) from error
        return parsed

    def _refusal(self, error: client.ApiException, settings: client.Configuration) -> ServiceError:
        """Return the error for an answer that is none of HTTP's 200 to 299."""
        status, text, where = int(error.status or 0), _message(error), settings.host
        conflict = status == 409 and _field(error, "reason") != "AlreadyExists"  # with what others write just now
        if status in (0, 408, 410, 429) or status >= 500 or (conflict and _is_status(error)):
            return ClusterSilentError(f"training_service: Kubernetes' API server at {where} can't answer now: {text}")
        if status in (401, 403) and not knows_user(settings):
            return RefusedError(
                f"training_service.kubeconfig: it gives no credentials for {where}; add the user that its context "
                f"names ({text})",
                status,
            )
        if status == 401:
            return RefusedError(f"training_service.kubeconfig: {where} does not know this user: {text}", status)
        if status == 403 and "exceeded quota" in text:
            return ClusterFullError(
                f"training_service.namespace: '{self._namespace}' needs a larger quota, or fewer objects: {text}"
            )
        if status == 403 and _is_status(error):
            role = f"; {_ROLE}" if re.search(r"cannot \w+ resource", text) else ""  # else no Role would mend it
            return RefusedError(f"training_service: Kubernetes forbids this: {text}{role}", status)
        if status == 404 and f'namespaces "{self._namespace}" not found' in text:
            return RefusedError(f"training_service.namespace: there is no namespace '{self._namespace}'", status)
        if status == 404 and error.body in (b"404 page not found\n", "404 page not found\n"):
            return RefusedError(
                f"training_service.kind: {where} does not know such jobs; install their operator", status
            )
        if not _is_status(error):
            return ClusterSilentError(
                f"training_service.kubeconfig: what answers at {where} is no API server of Kubernetes, but perhaps a "
                f"proxy: HTTP {status}: {text}; correct its cluster's server"
            )
        return RefusedError(f"training_service: Kubernetes refuses such jobs: {text}", status, exists=status == 409)

    def _connect(self) -> client.ApiClient:
        if self._client is None:
            try:
                settings = settings_of(self._kubeconfig, self._context)
            except ServiceError as error:
                raise RefusedError(str(error), 401) from error
            settings.retries = 1
            self._client = client.ApiClient(settings)
            self._client.user_agent = "nasflow"
        return self._client


def rights_text(missing: Sequence[str], namespace: str) -> str:
    """Return the sentence that names missing rights."""
    return f"training_service.namespace: in namespace '{namespace}' this user may not {', '.join(missing)}; {_ROLE}"


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


def _object(data: bytes) -> Object:
    """Return an object of the API. Raises ValueError if these are the bytes of something else, as a page of a proxy."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str) or found.get("status") == "Failure":
        raise ValueError(f"it sends no object of Kubernetes, but {data[:200].decode(errors='replace')!r}")
    return found


def _unreached(error: Exception, settings: client.Configuration) -> str:
    """Return the sentence for a server that gives no whole answer, because of `error`."""
    where, why = settings.host, quoted(str(error))
    if isinstance(error, urllib3.exceptions.ProtocolError) and where.startswith("http://"):
        return (
            f"training_service.kubeconfig: {where} breaks the connection off: {why}; if it expects https, correct its "
            "cluster's server"
        )
    if isinstance(error, urllib3.exceptions.SSLError):
        return (
            f"training_service.kubeconfig: no secure connection to {where}: {why}; correct its "
            "certificate-authority, client-certificate and client-key"
        )
    hint = "; HTTPS_PROXY is not set, and HTTP_PROXY is not for https" if lacks_proxy(settings) else ""
    return f"training_service: Kubernetes' API server at {where} does not answer: {why}{hint}"


def _is_status(error: client.ApiException) -> bool:
    """Whether an answer is of the API server itself."""
    return bool(_field(error, "kind") == "Status")


def _message(error: client.ApiException) -> str:
    """Return what the server says in its answer, a JSON object, or HTTP's own words."""
    return quoted(str(_field(error, "message") or error.reason))


def _field(error: client.ApiException, name: str) -> Any:
    """Return a field of an answer; None if it has no such field, or is no JSON object."""
    try:
        return json.loads(error.body)[name]
    except (TypeError, ValueError, KeyError):
        return None
