"""Reads a kubeconfig: where the API server is, and who asks."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import getproxies_environment

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config import kube_config

from nasflow.clean_text import one_line
from nasflow.errors import ServiceError

_KEY = "training_service.kubeconfig"
_DEFAULT = "~/.kube/config"
_NO_KUBECONFIG = (TypeError, KeyError, AttributeError)  # what its client raises upon a file of another form
_IN_POD = "KUBERNETES_SERVICE_HOST"


def settings_of(kubeconfig: str | None, context: str | None) -> client.Configuration:
    """Return the settings of a client.

    Args:
        kubeconfig: a file; None for the default one, or for the service account of the pod that this process is in.
        context: of the kubeconfig; None for its current one.

    Raises:
        ServiceError: the kubeconfig can't be used; the sentence shows no token.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG") or _DEFAULT  # several, as in PATH, are merged
    in_pod = kubeconfig is None and not _exists(named) and _IN_POD in os.environ
    place = "the pod's service account" if in_pod else named
    settings = client.Configuration()
    proxy = None
    try:
        with _errors_of_client() as said:
            if in_pod:
                config.load_incluster_config(client_configuration=settings)
            else:
                files = os.pathsep.join(str(Path(each).expanduser()) for each in named.split(os.pathsep) if each)
                config.load_kube_config(files, context, client_configuration=settings)
                proxy = _proxy_url(files, context)
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, *_NO_KUBECONFIG) as error:
        why = "it is no kubeconfig" if isinstance(error, _NO_KUBECONFIG) else quoted(str(error))
        raise ServiceError(f"{_KEY}: {place} can't be used: {why}") from error
    if said and not knows_user(settings):
        raise ServiceError(f"{_KEY}: {place} gives no credentials, because its user's program failed: {said[-1]}")
    _check_server(settings.host, place)
    _set_proxy(settings, proxy, place)
    renew = settings.refresh_api_key_hook

    def renewed(of: client.Configuration) -> None:
        if renew is not None:
            renew(of)
        of.refresh_api_key_hook = renewed  # which the client has replaced
        _check_tokens(of, place)

    renewed(settings)
    return settings


def knows_user(settings: client.Configuration) -> bool:
    """Whether requests with these settings say who asks."""
    return bool(settings.api_key or settings.cert_file or settings.username)


def lacks_proxy(settings: client.Configuration) -> bool:
    """Whether the environment names a proxy for http, but none for https, by which the server is reached."""
    for_http = "http" in getproxies_environment() and not should_bypass_proxies(settings.host, settings.no_proxy or "")
    return settings.proxy is None and for_http and settings.host.lower().startswith("https:")


def quoted(text: str) -> str:
    """Return a text of another program for a message."""
    return one_line(" ".join(text.split())[:500])


def _exists(named: str) -> bool:
    return any(Path(each).expanduser().exists() for each in named.split(os.pathsep) if each)


def _check_tokens(settings: client.Configuration, place: str) -> None:
    """Raise ServiceError if a token can't be sent; take the end of its line from it, as kubectl does."""
    settings.api_key = {name: token.strip() for name, token in settings.api_key.items()}
    if not all(" " <= letter <= "~" for token in settings.api_key.values() for letter in token):
        raise ServiceError(f"{_KEY}: the token in {place} has a line break or another character that no token has")


def _check_server(server: str, place: str) -> None:
    """Raise ServiceError if the URL of a server is none."""
    if not _is_url(server):
        raise ServiceError(
            f"{_KEY}: the cluster's server in {place} is {quoted(server)!r}; give a URL such as https://host:6443"
        )


def _is_url(text: str) -> bool:
    try:
        url = urllib3.util.parse_url(text)
    except urllib3.exceptions.LocationParseError:
        return False
    return url.scheme in ("https", "http") and bool(url.host)


def _proxy_url(files: str, context: str | None) -> str | None:
    """Return the `proxy-url` of the cluster of a context, which the client does not read; None if it has none."""
    merged = kube_config.KubeConfigMerger(files).config
    used = merged["contexts"].get_with_name(context or merged["current-context"])["context"]
    found = merged["clusters"].get_with_name(used["cluster"])["cluster"].safe_get("proxy-url")
    return str(found) if found else None


def _set_proxy(settings: client.Configuration, told: str | None, place: str) -> None:
    """Let the client use the given proxy, else that of the environment for URLs such as its server's.

    The client itself takes the one for http first, and heeds no NO_PROXY.
    """
    proxies = getproxies_environment()
    proxy = told or proxies.get(settings.host.partition("://")[0].lower())
    settings.proxy = f"http://{proxy}" if proxy and "://" not in proxy else proxy
    settings.no_proxy = None if told else proxies.get("no")
    if proxy and not should_bypass_proxies(settings.host, settings.no_proxy or "") and not _is_url(settings.proxy):
        source = f"the cluster's proxy-url in {place}" if told else "the environment's proxy"
        socks = " (socks proxies can't be used)" if settings.proxy.lower().startswith("socks") else ""
        raise ServiceError(
            f"{_KEY}: {source} is no URL of a proxy for http or https{socks}; give one such as http://host:3128"
        )


@contextmanager
def _errors_of_client() -> Iterator[list[str]]:
    """Collect what the client only logs when the program of a user gives no token."""
    said: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "root":
                said.append(quoted(record.getMessage()))

    collector = Collector(logging.ERROR)
    logging.getLogger().addHandler(collector)
    try:
        yield said
    finally:
        logging.getLogger().removeHandler(collector)
