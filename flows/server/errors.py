"""Errors between nasflow and Prefect's API, each as one sentence that says how to fix it."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nasflow.errors import NasflowError, ServiceError, UserError

from .in_use import server_in_use

if TYPE_CHECKING:
    from httpx import HTTPStatusError, Request

_EXAMPLE = "http://127.0.0.1:4200/api"


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


def no_server() -> PrefectApiError:
    """Return the error of a command that needs a server where none is named and Prefect's settings let none start."""
    return PrefectApiError(
        "no Prefect server is named, and PREFECT_SERVER_ALLOW_EPHEMERAL_MODE lets none start",
        f"run 'nasflow server start', or set PREFECT_API_URL to that of a server, such as {_EXAMPLE}",
    )


def _explained(error: Exception) -> PrefectApiError | None:
    """Return the PrefectApiError for an error; None if it is not about Prefect's API."""
    if "prefect" not in sys.modules:
        return None
    from httpx import HTTPStatusError, InvalidURL, RequestError, UnsupportedProtocol  # noqa: PLC0415 - slow

    from .answers import explained_answer, explained_certificates, explained_failure  # noqa: PLC0415 - slow

    chain = _causes(error)
    words = " ".join(str(link) for link in chain if isinstance(link, RuntimeError))
    for link in chain:
        if isinstance(link, InvalidURL | UnsupportedProtocol):
            return _wrong_url("is not a URL") if "Failed to reach API" in words or _is_ours(link) else None
        if isinstance(link, HTTPStatusError) and _is_ours(link) and (said := explained_answer(link, _server())):
            return PrefectApiError(*said)
        if isinstance(link, RequestError) and _is_ours(link):
            own = api_url() is None or server_in_use() is not None
            return _own_has_ended() if own else PrefectApiError(*explained_failure(link, _server()))
    if "Failed to reach API" in words:
        return _own_has_ended() if api_url() is None else _wrong_url("answers, but not as Prefect's API does", chain)
    if "Found incompatible versions" in words:
        return PrefectApiError(
            f"{_server()} has another version ({words.partition(': ')[2].removesuffix('.')})",
            "install the same Prefect on both sides",
        )
    if "ephemeral Prefect API server" in words:
        return PrefectApiError("Prefect's own server did not start", "'nasflow doctor' looks for the reason")
    if "No Prefect API URL provided" in str(chain[-1]):
        return no_server()
    if isinstance(chain[-1], OSError) and (said := explained_certificates()):
        return PrefectApiError(*said)
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


def _own_has_ended() -> PrefectApiError:
    return PrefectApiError("Prefect's own server has ended", "run the command again: it goes on from there")


def _wrong_url(saw: str, chain: Sequence[BaseException] = ()) -> PrefectApiError:
    from .answers import HEADERS  # noqa: PLC0415 - slow

    mend = f"set PREFECT_API_URL to that of a Prefect server, such as {_EXAMPLE}"
    if any(isinstance(link, ValueError) for link in chain):  # a page, no JSON
        mend += f", or {HEADERS}"
    return PrefectApiError(f"{api_url()} {saw}", mend)


def _is_ours(error: BaseException) -> bool:
    """Whether a failed request was to Prefect's API, or redirected from there."""
    from httpx import URL, HTTPStatusError  # noqa: PLC0415 - slow

    try:
        request: Request = error.request  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # the error has no request
        return False
    if isinstance(error, HTTPStatusError) and error.response.history:
        request = error.response.history[0].request
    url = api_url()
    if url is None:  # the server that Prefect starts by itself
        return request.url.host == "127.0.0.1"
    ours = URL(url)
    return (request.url.host, request.url.port) == (ours.host, ours.port)
