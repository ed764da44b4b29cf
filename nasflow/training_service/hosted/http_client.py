"""A client of web APIs: requests have a time limit, answers a size limit, and no message has a secret in it."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx

from nasflow.clean_text import one_line
from nasflow.config.secret.secret_url import MASK
from nasflow.config.secret.secrets import Secret, reveal
from nasflow.errors import ConfigError
from nasflow.training_service.cluster.base import ClusterSilentError

_BYTES = 64 * 2**20  # of an answer; a list of 1,000 jobs has about 1 MB
_SHOWN = 300  # characters of an answer in a message
_BUSY = {408, 425, 429}  # a request that may be repeated later


@dataclass(frozen=True)
class Answer:
    """What a service answered: the status code, and the body, which may be any bytes."""

    code: int
    body: bytes

    def json(self) -> Any:
        """Return the body as JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


class _SecretTransport(httpx.HTTPTransport):
    """Adds secrets to requests below the level at which httpx logs them."""

    def __init__(self, headers: Mapping[str, str], params: Mapping[str, str], verify: Any):
        super().__init__(verify=verify)
        self._headers, self._params = headers, params

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = httpx.Headers(request.headers)
        headers.update(self._headers)
        sent = httpx.Request(
            request.method,
            request.url.copy_merge_params(self._params),
            headers=headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        return super().handle_request(sent)


class HttpClient:
    """Sends requests to one service. May be used by several threads.

    Args:
        service: its name, for messages.
        url: what every path is appended to.
        headers: secret headers of each request.
        params: secret parameters in each request's URL.
        tls: false: don't check the service's certificate; a file: the certificates of who may have signed it.
        seconds: the longest that a request takes.
    """

    def __init__(
        self,
        service: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        tls: bool | Path = True,
        seconds: float = 30.0,
    ):
        self._service, self._url, self._seconds = service, url.rstrip("/"), seconds
        headers, params = headers or {}, params or {}
        self._secrets = [*(value.removeprefix("Bearer ") for value in headers.values()), *params.values()]
        verify = tls if isinstance(tls, bool) else _certificates(tls)
        self._client = httpx.Client(
            transport=_SecretTransport(headers, params, verify), timeout=seconds, trust_env=False
        )

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: Any = None,
        text: str | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Send a request and return the answer, unless the service is out of order or busy.

        Args:
            method: `GET`, `POST` or `PUT`.
            path: below the service's URL.
            params: of the URL's query.
            body: JSON to send.
            text: what to send instead.
            content_type: of what is sent.

        Raises:
            ClusterSilentError: no answer in time, or an error of the server or of the connection. Whether the service
                carried out the request is unknown.
        """
        deadline = time.monotonic() + self._seconds
        content = text if text is not None else None if body is None else json.dumps(body)
        headers = {} if content is None else {"Content-Type": content_type}
        try:
            with self._client.stream(
                method, self._url + path, params=params, content=content, headers=headers
            ) as response:
                answer = Answer(response.status_code, self._read(response, deadline))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            words = str(error) or type(error).__name__
            raise ClusterSilentError(self._silence(words)) from None
        if answer.code >= 500 or answer.code in _BUSY:
            raise ClusterSilentError(self._silence(f"HTTP {answer.code}: {self.shown(answer)}"))
        return answer

    def shown(self, answer: Answer) -> str:
        """Return what an answer says, for a message: its text in one line, without the secrets of the requests."""
        text = answer.body[: 2**16].decode(errors="replace")
        try:
            found = answer.json()
            if isinstance(found, dict):
                found = found["error"] if isinstance(found.get("error"), dict) else found
                text = str(found.get("message") or found.get("error") or text)
        except ValueError:
            pass
        return one_line(self.hide(" ".join(text.split()))[:_SHOWN])  # a secret that is cut is still one

    def hide(self, text: str) -> str:
        """Return a text with `***` for each secret in it."""
        for secret in self._secrets:
            for spelling in {secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}:
                text = text.replace(spelling, MASK) if spelling else text
        return text

    def json_of(self, answer: Answer, kind: type | tuple[type, ...] = dict) -> Any:
        """Return an answer's JSON value of this kind.

        Raises:
            ClusterSilentError: it is something else, as the page of a proxy is.
        """
        try:
            value = answer.json()
        except ValueError:
            value = None
        if not isinstance(value, kind):
            raise ClusterSilentError(self._silence(f"HTTP {answer.code}: {self.shown(answer)}"))
        return value

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        parts, size = [], 0
        for part in response.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > _BYTES:
                raise ValueError(f"an answer of more than {_BYTES >> 20} MB")
            if time.monotonic() > deadline:
                raise ValueError(f"no whole answer within {self._seconds:g} s")
        return b"".join(parts)

    def _silence(self, words: str) -> str:
        said = one_line(self.hide(" ".join(words.split())))
        return f"training_service.url: {self._service} at {self._url} does not answer as it should: {said}"


def header_secret(secret: Secret, key: str) -> str:
    """Return a secret's text for a request's header or URL.

    Raises:
        ConfigError: it is empty or has other characters than a request can carry; it is not quoted.
    """
    text = reveal(secret, key)
    if not text or not all("!" <= letter <= "~" for letter in text):
        raise ConfigError(
            f"{key}: this secret is empty, or has spaces, line breaks or other characters that no such secret has; "
            "give it alone, without the end of its line"
        )
    return text


def unknown_words(words: Sequence[str], most: int = 20) -> str:
    """Return names that a service knows, for a message; some, if there are many."""
    return one_line(", ".join(sorted(words)[:most])) + (", ..." if len(words) > most else "") or "none"


def _certificates(file: Path) -> Any:
    import ssl  # noqa: PLC0415 - rarely asked for

    try:
        return ssl.create_default_context(cafile=file.expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"training_service.ca_file: can't read certificates from {file}: {error}") from None
