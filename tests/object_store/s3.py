"""An S3 server of the tests' own, which counts requests."""

import json
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

pytest.importorskip("moto", reason="needs moto and s3fs: install nasflow[dev]")
import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

KEY, SECRET = "AKIAHUSHHUSHHUSHHUSH", "hush-hush-hush-hush-hush-hush-hush-hush"


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_):
        """Say nothing."""


class S3:
    """A server with one bucket.

    Attributes:
        requests: method and path of each request so far.
    """

    def __init__(self):
        self.requests: list[tuple[str, str]] = []
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._count, threaded=True, request_handler=_Quiet)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.client = boto3.client("s3", **self._client(self.port), aws_access_key_id=KEY, aws_secret_access_key=SECRET)
        self.client.create_bucket(Bucket="bucket")

    def storage(self, port: int | None = None) -> dict:
        """Return the section of the config, perhaps for a proxy's port."""
        options = {"key": KEY, "secret": SECRET, "client_kwargs": self._client(port or self.port)}
        return {"url": "s3://bucket/searches", "options": options}

    def objects(self) -> list[str]:
        """Return the keys of all objects."""
        return [one["Key"] for one in self.client.list_objects_v2(Bucket="bucket").get("Contents", [])]

    def reader(self) -> tuple[str, str]:
        """Return the key and the secret of a new user who may only read."""
        iam = boto3.client("iam", **self._client(self.port), aws_access_key_id=KEY, aws_secret_access_key=SECRET)
        iam.create_user(UserName="reader")
        allowed = {"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName="reader", PolicyName="reads", PolicyDocument=policy)
        made = iam.create_access_key(UserName="reader")["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]

    @contextmanager
    def asking_policies(self):
        """Within it, users may only do what their policies allow; otherwise everybody may do everything."""
        url = f"http://127.0.0.1:{self.port}/moto-api/reset-auth"
        httpx.post(url, content="0").raise_for_status()
        try:
            yield
        finally:
            httpx.post(url, content="inf").raise_for_status()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()

    def _count(self, environ, start_response):
        self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
        return self._app(environ, start_response)

    @staticmethod
    def _client(port: int) -> dict:
        return {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}


def on_nodes(options: dict) -> dict:
    """Return an object store's section for a test that can't wait."""
    return {**options, "python": sys.executable, "poll_seconds": 0.2, "look_seconds": 0.3}
