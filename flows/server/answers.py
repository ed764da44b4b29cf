"""What is said where Prefect's API, or a proxy in front of it, refuses us or can't be reached."""

import ssl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from httpx import HTTPStatusError, RequestError, Response

Said = tuple[str, str]
"""What is wrong, and how to fix it."""

HEADERS = "PREFECT_CLIENT_CUSTOM_HEADERS to the headers that a proxy in front of it asks for"
_TOO_LARGE = "parameters must be less than"  # from Prefect's answer
_BUSY = (408, 429)
_EXPIRED, _OF_OTHERS = 10, (62, 64)  # codes of OpenSSL: the certificate's time, its host names and addresses


def explained_answer(error: "HTTPStatusError", server: str) -> Said | None:
    """Return what to say of an answer; None if it is about the request. `server` is the user's name for the server."""
    response = error.response
    code = response.status_code
    if (_lost_by_redirect(response) or _is_of_another(response)) and (said := _redirected(response, server)):
        return said
    if code in (401, 403):
        return _refused(response, server)
    if _TOO_LARGE in response.text:
        return (
            f"{server} takes no config of this size ({code})",
            "make the config shorter, or set PREFECT_SERVER_API_MAX_PARAMETER_SIZE=0 where that server starts",
        )
    if response.is_server_error or code in _BUSY:
        why = "the server's log says why; once it works" if response.is_server_error else "once it is less busy"
        return f"{server} answers {code} {response.reason_phrase}", f"{why}, run the command again"
    return _redirected(response, server) if response.history else None


def explained_failure(error: "RequestError", server: str) -> Said:
    """Return what to say of a request without an answer. `server` is the user's name for the server."""
    from httpx import ProxyError, TooManyRedirects  # noqa: PLC0415 - slow

    tls: BaseException | None = error
    while tls is not None and not isinstance(tls, ssl.SSLError):
        tls = tls.__cause__ or tls.__context__  # httpx hides some causes
    if isinstance(tls, ssl.SSLCertVerificationError):
        return _untrusted(tls, server)
    if tls is not None:
        mend = "if it has none, begin PREFECT_API_URL with http://"
        return f"{server} can't be reached by TLS ({tls.reason})", mend
    if isinstance(error, TooManyRedirects):
        return f"{server} redirects us in a circle", f"set PREFECT_API_URL to where its API is, or {HEADERS}"
    if isinstance(error, ProxyError):
        mend = "mend the proxy in HTTPS_PROXY or HTTP_PROXY, or name the server's host in NO_PROXY"
        return f"{server} can't be reached through this machine's proxy ({error})", mend
    return (
        f"{server} can't be reached",
        "start it with 'prefect server start', or unset PREFECT_API_URL to run without a server",
    )


def _untrusted(error: ssl.SSLCertVerificationError, server: str) -> Said:
    if error.verify_code == _EXPIRED:
        mend = "have it renewed"
    elif error.verify_code in _OF_OTHERS:
        mend = "set PREFECT_API_URL to a name for which it is valid"
    else:
        mend = "set PREFECT_API_SSL_CERT_FILE to the certificate of the authority that signed it"
    return f"the certificate of {server} is not trusted here ({error.verify_message.removesuffix('.')})", mend


def explained_certificates() -> Said | None:
    """Return what to say if the file of certificates in Prefect's settings can't be read; None if it can."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    api = get_current_settings().api
    if api.tls_insecure_skip_verify:  # the file is not read
        return None
    file = api.ssl_cert_file
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        saw = f"PREFECT_API_SSL_CERT_FILE or SSL_CERT_FILE: no certificates can be read from {file} ({why})"
        return saw, "name a file in PEM format"
    return None


def _lost_by_redirect(response: "Response") -> bool:
    """Whether a request lost its method and body, or its password, when it was redirected."""
    if not response.history:
        return False
    first, last = response.history[0].request, response.request
    return first.method != last.method or ("Authorization" in first.headers and "Authorization" not in last.headers)


def _is_of_another(response: "Response") -> bool:
    """Whether a request was redirected to another host, such as a login page's, where Prefect did not answer it."""
    before = response.history[0].url.host if response.history else response.url.host
    return before != response.url.host and "exception_message" not in response.text


def _redirected(response: "Response", server: str) -> Said | None:
    """Return what to say if `server` sent us elsewhere; None if it was only to another path."""
    before, now = response.history[0].url, response.url
    if (before.scheme, before.netloc) == (now.scheme, now.netloc):
        return None
    there = now.copy_with(path="/", query=None, fragment=None)
    if before.host == now.host:
        mend = "set PREFECT_API_URL to the URL there"
    else:
        mend = f"set PREFECT_API_URL to where its API is, or {HEADERS}"
    return f"{server} redirects us to {str(there).removesuffix('/')}", mend


def _refused(response: "Response", server: str) -> Said:
    """Return what to say of an answer 401 or 403."""
    from httpx import URL  # noqa: PLC0415 - slow
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    settings, code = get_current_settings(), response.status_code
    given, key = settings.api.auth_string is not None, settings.api.key is not None
    is_cloud = URL(settings.api.url or "").host == URL(settings.cloud.api_url).host
    if "CSRF" in response.text:
        return f"{server} refuses us ({code}: CSRF)", "set PREFECT_CLIENT_CSRF_SUPPORT_ENABLED=true"
    if code == 403 and is_cloud:
        return f"{server} does not let us do this ({code})", "use an API key with more rights in this workspace"
    if settings.client.custom_headers and not is_cloud and "exception_message" not in response.text:  # not Prefect's
        return f"{server} does not accept our PREFECT_CLIENT_CUSTOM_HEADERS ({code})", f"set {HEADERS}"
    if code == 403:
        return f"{server} refuses us ({code})", f"set {HEADERS}, or ask for access to it"
    if is_cloud or (key and not given):
        saw = "does not accept our PREFECT_API_KEY" if key else "asks for an API key, and we have none"
        mend = "run 'prefect cloud login', or set PREFECT_API_KEY to a key that is valid there"
    else:
        saw = "does not accept our PREFECT_API_AUTH_STRING" if given else "asks for a password, and we have none"
        mend = "set PREFECT_API_AUTH_STRING to the same user:password as PREFECT_SERVER_API_AUTH_STRING on the server"
    others = "" if is_cloud or "exception_message" in response.text else f", or {HEADERS}"
    return f"{server} {saw} ({code})", mend + others
