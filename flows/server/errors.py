"""Errors between nasflow and Prefect's API, each as one sentence that says how to fix it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nasflow.errors import NasflowError, ServiceError, UserError

from .in_use import server_in_use

if TYPE_CHECKING:
    from httpx import HTTPStatusError, Request

_EXAMPLE = "http://127.0.0.1:4200/api"
_TOO_LARGE = "parameters must be less than"  # from Prefect's answer


class PrefectApiError(ServiceError):
    """Raised when Prefect's API is unavailable.

    Args:
        saw: what is wrong.
        mend: how to fix it.
    """

    def __init__(self, saw: str, mend: str):
        super().__init__(f"{saw}: {mend}")
        self.saw, self.mend = saw, mend


@contextmanager
def clear_prefect_errors() -> Iterator[None]:
    """Raise errors of the block that mean that Prefect's API is unavailable as PrefectApiError."""
    try:
        yield
    except NasflowError:
        raise
    except Exception as error:
        known = _explained(error)
        if known is None:
            raise
        raise known from error


def api_url() -> str | None:
    """Return the URL of the Prefect API in use, without user and password; None if it ends with this process."""
    own = server_in_use()
    if own is not None and not own.kept:
        return None
    from httpx import URL, InvalidURL  # noqa: PLC0415 - slow
    from prefect.settings import PREFECT_API_URL  # noqa: PLC0415 - slow

    url = PREFECT_API_URL.value()
    try:
        return str(URL(url).copy_with(userinfo=b"")) if url else None
    except InvalidURL:
        return str(url)


def refuse_no_server() -> None:
    """Raise UserError if no Prefect server is configured. A server that Prefect starts by itself would soon end."""
    if api_url() is None:
        raise UserError(
            "no Prefect server is configured: start one with 'prefect server start' and set PREFECT_API_URL, "
            f"e.g. to {_EXAMPLE}"
        )


def refusal(error: "HTTPStatusError") -> str:
    """Return why Prefect's API has refused a request, in its words."""
    try:
        words = error.response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        words = str(error)
    return " ".join(str(words).split())[:300]


def _explained(error: Exception) -> PrefectApiError | None:
    """Return the PrefectApiError for an error; None if it is not about Prefect's API."""
    if "prefect" not in sys.modules:
        return None
    from httpx import HTTPStatusError, InvalidURL, RequestError, UnsupportedProtocol  # noqa: PLC0415 - slow

    chain = _causes(error)
    words = " ".join(str(link) for link in chain if isinstance(link, RuntimeError))
    for link in chain:
        if isinstance(link, InvalidURL | UnsupportedProtocol):
            return _wrong_url("is not a URL") if "Failed to reach API" in words or _is_ours(link) else None
        if isinstance(link, HTTPStatusError) and _is_ours(link) and link.response.status_code == 401:
            return _refused()
        if isinstance(link, HTTPStatusError) and _is_ours(link) and _TOO_LARGE in link.response.text:
            return PrefectApiError(
                f"{_server()} takes no config of this size ({link.response.status_code})",
                "make the config shorter, or set PREFECT_SERVER_API_MAX_PARAMETER_SIZE=0 where that server starts",
            )
        if isinstance(link, HTTPStatusError) and _is_ours(link) and link.response.is_server_error:
            return PrefectApiError(
                f"{_server()} answers {link.response.status_code} {link.response.reason_phrase}",
                "the server's log says why; once it works, run the command again",
            )
        if isinstance(link, RequestError) and _is_ours(link) and (api_url() is None or server_in_use()):
            return _own_has_ended()
        if isinstance(link, RequestError) and _is_ours(link):
            return PrefectApiError(
                f"{_server()} can't be reached",
                "start it with 'prefect server start', or unset PREFECT_API_URL to run without a server",
            )
    if "Failed to reach API" in words:
        return _own_has_ended() if api_url() is None else _wrong_url("answers, but not as Prefect's API does")
    if "Found incompatible versions" in words:
        return PrefectApiError(
            f"{_server()} has another version ({words.partition(': ')[2].removesuffix('.')})",
            "install the same Prefect on both sides",
        )
    if "ephemeral Prefect API server" in words:
        return PrefectApiError("Prefect's own server did not start", "'nasflow doctor' looks for the reason")
    return None


def _server() -> str:
    url = api_url()
    return "Prefect's own server" if url is None else f"Prefect's API at {url}"


def _causes(error: BaseException) -> list[BaseException]:
    """Return an error followed by the chain of its causes."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    return chain


def _refused() -> PrefectApiError:
    from httpx import URL  # noqa: PLC0415 - slow
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    settings = get_current_settings()
    given, key = settings.api.auth_string is not None, settings.api.key is not None
    if URL(api_url() or "").host == URL(settings.cloud.api_url).host or (key and not given):
        saw = "does not accept our PREFECT_API_KEY" if key else "asks for an API key, and we have none"
        return PrefectApiError(
            f"{_server()} {saw} (401)", "run 'prefect cloud login', or set PREFECT_API_KEY to a key that is valid there"
        )
    saw = "does not accept our PREFECT_API_AUTH_STRING" if given else "asks for a password, and we have none"
    return PrefectApiError(
        f"{_server()} {saw} (401)",
        "set PREFECT_API_AUTH_STRING to the same user:password as PREFECT_SERVER_API_AUTH_STRING on the server",
    )


def _own_has_ended() -> PrefectApiError:
    return PrefectApiError("Prefect's own server has ended", "run the command again: it goes on from there")


def _wrong_url(saw: str) -> PrefectApiError:
    return PrefectApiError(f"{api_url()} {saw}", f"set PREFECT_API_URL to that of a Prefect server, such as {_EXAMPLE}")


def _is_ours(error: BaseException) -> bool:
    """Whether a failed request was to Prefect's API."""
    from httpx import URL  # noqa: PLC0415 - slow

    try:
        request: Request = error.request  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # the error has no request
        return False
    url = api_url()
    if url is None:  # the server that Prefect starts by itself
        return request.url.host == "127.0.0.1"
    ours = URL(url)
    return (request.url.host, request.url.port) == (ours.host, ours.port)
