"""A client of Ray's Jobs API, the REST API of a dashboard. It follows no redirects and bounds every answer."""

import re
import time
from typing import Any, Literal, TypeVar
from urllib.parse import quote, unquote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from nasflow.clean_text import one_line
from nasflow.config.secret.secret_url import MASK, hide_passwords, without_passwords
from nasflow.config.secret.secrets import reveal
from nasflow.config.services.cluster.ray import RayServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.cluster.base import ClusterSilentError

_ANSWERS_WITHIN = 60.0  # seconds for a whole answer; a busy dashboard is slow
_CONNECTS_WITHIN = 10.0
_LONGEST_ANSWER = 256 * 2**20  # bytes; a list has all jobs of the cluster, with up to 20 kB of a failed one's log
_SHOWN_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?")
_DENIED = (401, 403)

T = TypeVar("T")


class RayJob(BaseModel):
    """What a list of jobs says of one."""

    submission_id: str
    status: Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
    message: str | None = None
    driver_node_id: str | None = None


class _Version(BaseModel):
    ray_version: str


class _Logs(BaseModel):
    logs: str


class RayJobs:
    """Ray's Jobs API at one address.

    Every method raises ClusterSilentError if there is no answer, or none as it should be, and ServiceError if the
    address or a header can't be used. No error shows the password of the address or the value of a header.
    """

    def __init__(self, config: RayServiceConfig):
        self._config = config
        self._client: httpx.Client | None = None
        self._hidden: list[str] = []

    def version(self) -> str:
        """Return the cluster's version of Ray."""
        return self._ask(_Version, "GET", "/api/version").ray_version

    def submit(self, name: str, entrypoint: str, cpus: float, gpus: float) -> None:
        """Submit a job unless Ray has one of this name, which it accepts once.

        Raises:
            ServiceError: Ray refuses such jobs.
        """
        job = {
            "entrypoint": entrypoint,
            "submission_id": name,
            "entrypoint_num_cpus": cpus,
            "entrypoint_num_gpus": gpus,
        }
        status, text = self._call("POST", "/api/jobs/", job)
        if status < 400 or f"{name} already exists" in text:
            return
        if status == 400 or "failed with status code 400" in text:  # of the node that Ray's head asks
            raise ServiceError(f"training_service: Ray refuses such jobs: {self._quoted(text)}")
        raise self._silent(status, text)

    def jobs(self, prefix: str) -> list[RayJob]:
        """Return the jobs whose names begin with a prefix."""
        listed = self._ask(list[dict[str, Any]], "GET", "/api/jobs/")
        ours = [job for job in listed if str(job.get("submission_id") or "").startswith(prefix)]
        return self._checked(list[RayJob], ours)

    def stop(self, name: str) -> None:
        """End a job by force. Has no effect on one that has ended or that Ray does not know."""
        status, text = self._call("POST", f"/api/jobs/{quote(name, safe='')}/stop")
        if status >= 400 and status != 404:
            raise self._silent(status, text)

    def log(self, name: str) -> str:
        """Return what the job has written to its standard output and error."""
        return self._ask(_Logs, "GET", f"/api/jobs/{quote(name, safe='')}/logs").logs

    def _ask(self, shape: type[T], method: str, path: str) -> T:
        status, text = self._call(method, path)
        if status >= 400:
            raise self._silent(status, text)
        try:
            return TypeAdapter(shape).validate_json(text)
        except ValidationError:
            raise self._odd(text) from None

    def _checked(self, shape: type[T], value: Any) -> T:
        try:
            return TypeAdapter(shape).validate_python(value)
        except ValidationError:
            raise self._odd(str(value)) from None

    def _call(self, method: str, path: str, content: Any = None) -> tuple[int, str]:
        """Return the status, which is no redirect, and the text of an answer."""
        client = self._client = self._client or self._open()
        begin = time.monotonic()
        answer = bytearray()
        try:
            with client.stream(method, path, json=content) as response:
                if response.is_redirect:
                    place = one_line(without_passwords(response.headers.get("location", "nowhere")))
                    raise ClusterSilentError(
                        f"training_service.address: {self._where} redirects to {place}, which is not followed; "
                        "give the address of the dashboard itself, and 'headers' if it asks for a login"
                    )
                for part in response.iter_bytes():
                    answer += part
                    if len(answer) > _LONGEST_ANSWER or time.monotonic() - begin > _ANSWERS_WITHIN:
                        raise self._wrong(f"its answer is too long, after {len(answer)} bytes, or too slow")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise self._wrong(str(error) or type(error).__name__) from None
        return response.status_code, answer.decode(errors="replace")

    def _open(self) -> httpx.Client:
        address = reveal(self._config.address, "training_service.address")
        headers = {
            name: self._header(name, reveal(value, f"training_service.headers.{name}"))
            for name, value in self._config.headers.items()
        }
        self._hidden = sorted(headers.values(), key=len, reverse=True)
        try:
            url = httpx.URL(address)
            # '#' and '?' would be cut off, and a password may have them in it
            usable = url.scheme in ("http", "https") and url.host and not url.query and not url.fragment
        except httpx.InvalidURL:
            usable = False
        if not usable:
            raise ServiceError(
                f"training_service.address: {self._config.address} is no address of a dashboard; write "
                "http://HOST:PORT or https://HOST:PORT, and what authenticates into 'headers'"
            )
        user = (unquote(url.username), unquote(url.password)) if url.userinfo else None
        return httpx.Client(
            base_url=url.copy_with(userinfo=b""),
            auth=None if any(name.lower() == "authorization" for name in headers) else user,
            headers=headers,
            timeout=httpx.Timeout(_ANSWERS_WITHIN, connect=_CONNECTS_WITHIN),
            follow_redirects=False,
        )

    @staticmethod
    def _header(name: str, value: str) -> str:
        if _SHOWN_VALUE.fullmatch(value) is None:
            raise ServiceError(
                f"training_service.headers.{name}: HTTP can't carry its value; it may have printable ASCII characters "
                "only, and no space at either end"
            )
        return value

    @property
    def _where(self) -> str:
        return f"Ray's Jobs API at {self._config.address}"

    def _quoted(self, text: str) -> str:
        """Return the last line of an answer, which of a traceback is the error, without the secrets of the request."""
        text = hide_passwords(text, reveal(self._config.address, "training_service.address"))
        for secret in self._hidden:
            text = text.replace(secret, MASK)
        lines = [line for line in text.splitlines() if any(letter.isalnum() for letter in line)]
        return one_line(lines[-1])[:300] if lines else "an empty answer"

    def _wrong(self, text: str) -> ClusterSilentError:
        return ClusterSilentError(
            f"training_service.address: {self._where} does not answer as it should: {self._quoted(text)}"
        )

    def _silent(self, status: int, text: str) -> ClusterSilentError:
        if status in _DENIED:
            return ClusterSilentError(
                f"training_service.headers: {self._where} denies access (HTTP {status}); give the header that "
                "authenticates, such as {Authorization: {env: NAME}}"
            )
        return self._wrong(f"HTTP {status}: {self._quoted(text)}")

    def _odd(self, text: str) -> ClusterSilentError:
        return self._wrong(f"this is no answer of Ray's: {self._quoted(text[:1000])}")
