"""What the emulators of hosted services share: a server on a free port that can be told to misbehave."""

import json
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.hosted.containers import Container


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class Fault:
    """What happens to requests of this method and path, a number of times.

    `code`: answered in place of what they ask for. `slow`: seconds before they are carried out. `lost`: they are
    carried out, and the connection breaks before the answer. `body`: the answer's in place of its own.
    """

    method: str = ""
    path: str = ""
    times: float = 1
    code: int | None = None
    slow: float = 0.0
    lost: bool = False
    body: bytes | None = None

    def meets(self, request: Request) -> bool:
        return self.times > 0 and self.method in ("", request.method) and bool(re.search(self.path, request.path))


class Refused(Exception):
    """The answer to a request that the service refuses."""

    def __init__(self, code: int, body: Any):
        super().__init__(f"{code}: {body}")
        self.code, self.body = code, body


def check(condition: object, code: int, body: Any) -> None:
    if not condition:
        raise Refused(code, body)


@dataclass
class Job:
    """A job of the service: what was submitted, its container if it has begun, and what a test says instead of it."""

    body: dict[str, Any]
    line: str
    number: int
    container: Container | None = None
    environment: dict[str, str] = field(default_factory=dict)
    stopping: bool = False
    says: dict[str, Any] = field(default_factory=dict)
    created: float = field(default_factory=time.time)

    @property
    def alive(self) -> bool:
        return self.container is not None and self.container.exit_code is None

    @property
    def waits(self) -> bool:
        return self.container is None and not self.stopping

    @property
    def phase(self) -> str:
        """`waiting`, `running`, `stopping`, `stopped`, `succeeded` or `failed`."""
        if self.stopping:
            return "stopping" if self.alive else "stopped"
        if self.container is None:
            return "waiting"
        code = self.container.exit_code
        return "running" if code is None else "failed" if code else "succeeded"

    def stop(self) -> None:
        self.stopping = True
        if self.container is not None:
            self.container.stop()


class Emulator(ABC):
    """A service with jobs by name or id. A subclass answers requests in `answer`, one at a time."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.places = 8  # jobs that run at a time
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        self._ended, self._due = threading.Event(), threading.Event()

    @abstractmethod
    def answer(self, request: Request) -> tuple[int, Any]:
        """Carry out a request; return the status code, and the body as bytes or a JSON value."""

    @property
    def unfinished(self) -> int:
        """How many jobs wait or run."""
        return sum(job.waits or job.alive for job in self.jobs.values())

    def schedule(self) -> None:
        """Let what waits begin soon, in order, where there is a place."""
        self._due.set()

    def _schedule(self) -> None:
        """Start containers, which see the end of the thread that does so as that of their machine."""
        with self.lock:
            for job in sorted(self.jobs.values(), key=lambda job: job.number):
                if job.waits and sum(other.alive for other in self.jobs.values()) < self.places:
                    job.container = Container(job.line, job.environment)

    def job(self, job_id: str) -> Job:
        """The newest run of a job."""
        runs = [job for job in self.jobs.values() if f"-{job_id}-" in self.name(job)]
        return max(runs, key=lambda job: job.number)

    def name(self, job: Job) -> str:
        return str(job.body["name"])

    @contextmanager
    def running(self) -> Iterator["Emulator"]:
        serving = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        scheduling = threading.Thread(target=self._schedule_now_and_then)
        for thread in (serving, scheduling):
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self.server.shutdown()
            self.server.server_close()
            for thread in (serving, scheduling):
                thread.join()
            for job in self.jobs.values():
                if job.container is not None:
                    job.container.kill()

    def _schedule_now_and_then(self) -> None:
        while not self._ended.is_set():
            self._due.wait(0.1)
            self._due.clear()
            self._schedule()


def handler(emulator: Emulator) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def serve(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, url.path, dict(parse_qsl(url.query, True)), headers, body)
            with emulator.lock:
                emulator.requests.append(request)
                fault = next((each for each in emulator.faults if each.meets(request)), Fault())
                fault.times -= 1
            if fault.code is not None:
                self.reply(fault.code, fault.body if fault.body is not None else {"message": "told to fail"})
                return
            time.sleep(fault.slow)
            try:
                with emulator.lock:
                    code, value = emulator.answer(request)
            except Refused as refused:
                code, value = refused.code, refused.body
            if fault.lost:
                self.close_connection = True
                return
            self.reply(code, value if fault.body is None else fault.body)

        def reply(self, code: int, value: Any) -> None:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            try:
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # who asked has gone

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = serve

    return Handler
