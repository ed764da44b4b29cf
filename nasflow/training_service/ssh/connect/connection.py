"""One connection to one host of the SSH service.

Nothing here waits without a limit: a network partition shows only as a missing answer, and paramiko considers a
connection alive as long as its socket is. `Unreachable` means that a command may or may not have run.
"""

import contextlib
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from paramiko import (
    BadHostKeyException,
    Channel,
    ChannelException,
    MissingHostKeyPolicy,
    PKey,
    SFTPClient,
    SFTPError,
    SSHClient,
    SSHException,
    Transport,
)
from paramiko.config import SSH_PORT
from paramiko.ssh_exception import IncompatiblePeer

from nasflow.config.services.ssh import SshHostConfig, SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ssh.connect.errors import Unreachable
from nasflow.training_service.ssh.connect.known_hosts import load_known_hosts
from nasflow.training_service.ssh.connect.login import Login
from nasflow.training_service.ssh.connect.route import Hop, find_route, place_of
from nasflow.training_service.ssh.connect.start_command import start_command

_KEEPALIVE = 15  # seconds
_UNACKNOWLEDGED = 30_000  # milliseconds that sent bytes may stay unacknowledged before the system drops the connection
_PROXY_ENDS_WITHIN = 2.0  # seconds
_CHUNK = 1 << 16

_log = logging.getLogger("nasflow.ssh")
if _log.level == logging.NOTSET:
    _log.setLevel(logging.CRITICAL)  # paramiko also logs a traceback for everything it raises


@dataclass(frozen=True)
class Completed:
    """A command that ran to its end; `returncode` is -1 if a signal ended it."""

    returncode: int
    stdout: bytes
    stderr: bytes


class SshConnection:
    """Connects to a host, reconnects if the connection was closed or broke, and runs commands there. Thread-safe.

    Attributes:
        address: of the host, once it was connected; its name, if other machines are between.
    """

    def __init__(self, host: SshHostConfig, service: SshServiceConfig):
        self.place = place_of(host)
        self.address = ""
        self._host = host
        self._service = service
        self._timeout = service.connect_timeout
        self._clients: list[SSHClient] = []
        self._proxy: subprocess.Popen[bytes] | None = None
        self._sftp: SFTPClient | None = None
        self._sftp_lock = threading.Lock()

    def connect(self) -> None:
        """Connect and log in, after closing any earlier connection.

        Raises:
            Refused: none of our keys is accepted.
            ServiceError: something else must be fixed, such as a file, a host's key or the OpenSSH configuration.
            Unreachable: no answer, or nothing listens there.
        """
        self.close()
        hops = find_route(self._host, self._service)
        try:
            for hop in hops:
                self._clients.append(self._connect(hop))
        except BaseException:
            self.close()
            raise
        is_direct = len(hops) == 1 and hops[0].proxy_command is None
        self.address = self.transport.getpeername()[0] if is_direct else hops[-1].host

    @property
    def transport(self) -> Transport:
        """The connection itself. Raises `Unreachable` if there is none."""
        transport = self._transport()
        if transport is None or not transport.is_active():
            raise Unreachable(f"{self.place}: the connection is broken")
        return transport

    def run(self, argv: Sequence[str], input: bytes = b"", timeout: float | None = None) -> Completed:
        """Run a command to its end, after the host's `env_setup`.

        Args:
            argv: program and arguments; a shell expands nothing but a leading `~/`, the home there.
            input: its standard input.
            timeout: seconds it may take in total; default: the config's `connect_timeout`.

        Raises:
            Unreachable: it has not ended in time, or the connection broke; whether it ran is unknown. Its output and
                input are then closed, which makes most programs exit.
        """
        return self._run(self._command(argv), input, timeout or self._timeout)

    def _run(self, command: str, input: bytes, timeout: float) -> Completed:
        with self._opened(timeout) as channel, contextlib.closing(channel):
            channel.exec_command(command)
            with ThreadPoolExecutor(2) as pool:
                pool.submit(_send, channel, input)
                stderr = pool.submit(_read, channel.recv_stderr)
                stdout = _read(channel.recv)
                status = channel.recv_exit_status()
            if status == -1 and not (channel.eof_received and self._is_up()):
                raise EOFError("closed by the host")
            return Completed(status, stdout, stderr.result())

    def open_channel_process(self, argv: Sequence[str]) -> Channel:
        """Start a program that communicates over its standard input and output and runs until either closes.

        Read its standard error too (`recv_stderr`): after 2 MB of unread output the program blocks.

        Raises:
            Unreachable: no answer, or the connection broke; whether it started is unknown.
        """
        command = self._command(argv)
        with self._opened(self._timeout) as channel:
            channel.exec_command(command)
        return channel

    @contextlib.contextmanager
    def sftp(self) -> Iterator[SFTPClient]:
        """Context with access to the host's files, for one thread at a time. Errors about files are `OSError`.

        Raises:
            ServiceError: the host has no sftp, or something disturbs it.
            Unreachable: no answer, or the connection broke; the next block has a new client.
        """
        with self._sftp_lock:
            client = self._sftp = self._sftp or self._open_sftp()
            try:
                yield client
            except (SSHException, EOFError, OSError) as error:
                told_of_a_file = isinstance(error, OSError) and not isinstance(error, TimeoutError)
                if told_of_a_file and not _channel(client).closed:
                    if getattr(error, "errno", None) is None:  # SFTP has no code for a full disk
                        hint = "the disk there may be full, or a quota reached"
                        raise OSError(f"sftp says '{error}' of a file; {hint}") from error
                    raise
                self._sftp = None
                _close(client)
                raise self._lost(error, isinstance(error, TimeoutError), self._timeout) from error

    def close(self) -> None:
        """End the connection, and with it what `open_channel_process` started, unless it has left its session."""
        self._sftp = None
        while self._clients:
            self._clients.pop().close()
        if self._proxy is not None:
            self._proxy.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._proxy.wait(_PROXY_ENDS_WITHIN)
            self._proxy.kill()
            self._proxy.wait()
            self._proxy = None

    def _command(self, argv: Sequence[str]) -> str:
        setup = self._host.env_setup
        return start_command(argv) if setup is None else start_command(argv, setup, self._login_shell)

    @cached_property
    def _login_shell(self) -> str:
        """Return the name of the user's shell there, which runs every command."""
        said = self._run("echo $SHELL", b"", self._timeout).stdout.decode(errors="replace").split()
        return PurePosixPath(said[-1]).name if said else ""

    def _open_sftp(self) -> SFTPClient:
        began = time.monotonic()
        with self._opened(self._timeout) as channel:
            try:
                channel.invoke_subsystem("sftp")
                client = SFTPClient(channel)
            except SFTPError as error:
                raise ServiceError(
                    f"{self.place}: sftp can't be spoken there ({error}); "
                    "what the shell prints at a login, as in ~/.bashrc, may disturb it"
                ) from error
            except SSHException as error:
                if not self._is_up() or time.monotonic() - began >= self._timeout:
                    raise
                raise ServiceError(
                    f"{self.place}: its sshd starts no sftp ({error}); have 'Subsystem sftp internal-sftp' in the "
                    "sshd_config there"
                ) from error
        channel.settimeout(self._timeout)
        return client

    @contextlib.contextmanager
    def _opened(self, timeout: float) -> Iterator[Channel]:
        """Open a channel that is closed if the block takes longer, because some of paramiko's calls have no limit."""
        late = threading.Event()
        began = time.monotonic()
        try:
            channel = self.transport.open_session(timeout=timeout)
        except (SSHException, EOFError, OSError) as error:
            if time.monotonic() - began >= timeout:
                late.set()
            raise self._lost(error, late.is_set(), timeout) from error

        def give_up() -> None:
            late.set()
            _close(channel)

        timer = threading.Timer(timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield channel
        except (SSHException, EOFError, OSError) as error:
            raise self._lost(error, late.is_set(), timeout) from error
        finally:
            timer.cancel()
        if late.is_set():
            raise self._lost(TimeoutError(), True, timeout)

    def _lost(self, error: Exception, late: bool, timeout: float) -> Unreachable:
        what = f"no answer within {timeout:g} s" if late else f"the connection broke: {_reason(error)}"
        return Unreachable(f"{self.place}: {what}")

    def _is_up(self) -> bool:
        """Whether the connection seems alive; a network partition is not detected."""
        transport = self._transport()
        return transport is not None and transport.is_active()

    def _transport(self) -> Transport | None:
        clients = tuple(self._clients)
        return clients[-1].get_transport() if clients else None

    # --- connecting ----------------------------------------------------------------------------------------------

    def _connect(self, hop: Hop) -> SSHClient:
        """Connect to a machine, through the one before it if any, and log in."""
        client = SSHClient()
        client.set_log_channel(_log.name)
        revoked = load_known_hosts(client.get_host_keys(), hop)
        is_direct = not self._clients and not hop.proxy_command
        client.set_missing_host_key_policy(_RefuseUnknown(hop, is_direct, revoked))
        began = time.monotonic()
        try:
            client.connect(
                hop.key_name,
                username=hop.user,
                sock=self._socket(hop),
                timeout=self._timeout,
                banner_timeout=self._timeout,
                auth_timeout=self._timeout,
                channel_timeout=self._timeout,
                auth_strategy=Login(hop, self._timeout),
            )
        except BaseException as error:
            client.close()
            if isinstance(error, SSHException | EOFError | OSError):
                raise self._not_connected(hop, error, time.monotonic() - began) from error
            raise
        transport = client.get_transport()
        assert transport is not None  # noqa: S101 - it has just connected
        transport.set_keepalive(_KEEPALIVE)
        return client

    def _socket(self, hop: Hop) -> socket.socket | Channel:
        """Open the socket or channel to a machine's sshd."""
        before = self._transport()
        if before is not None:
            return before.open_channel("direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), timeout=self._timeout)
        if hop.proxy_command is not None:
            ours, theirs = socket.socketpair()
            with theirs:
                self._proxy = subprocess.Popen(
                    ["/bin/sh", "-c", f"exec {hop.proxy_command}"],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                )
            return ours
        sock = socket.create_connection((hop.host, hop.port), self._timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED)
        return sock

    def _not_connected(self, hop: Hop, error: Exception, seconds: float) -> ServiceError:
        at = f"{hop.place}: {hop.address}"
        match error:
            case BadHostKeyException():
                return ServiceError(f"{hop.place}: {_changed_key(hop, error)}")
            case IncompatiblePeer():
                return ServiceError(f"{at}: its sshd is too old, or too strict, for paramiko: {error}")
            case socket.gaierror():
                return Unreachable(
                    f"{hop.place}: the name '{hop.host}' can't be resolved ({error.strerror}); "
                    "check how it is written, and the network"
                )
            case ConnectionRefusedError():
                return Unreachable(f"{at} refuses connections; check the port, and that sshd runs there")
            case ChannelException():
                return Unreachable(f"{at} can't be reached from the machine before it: {error.text}")
        if seconds >= self._timeout:
            return Unreachable(
                f"{at} gives no answer within {self._timeout:g} s; check the address, and what is in between "
                "(firewall, VPN), or raise training_service.connect_timeout"
            )
        if hop.proxy_command:
            return Unreachable(
                f"{at}: its ProxyCommand '{hop.proxy_command}' does not lead to an sshd: {_reason(error)}"
            )
        return Unreachable(f"{at} can't be reached: {_reason(error)}; check address and port, and that sshd runs there")


class _RefuseUnknown(MissingHostKeyPolicy):
    """Raises an error that names a host's key and how to add it to the known hosts, unless it is revoked there."""

    def __init__(self, hop: Hop, direct: bool, revoked: Mapping[bytes, Path]):
        self._hop = hop
        self._direct = direct
        self._revoked = revoked

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> None:
        hop = self._hop
        if revoking := self._revoked.get(key.asbytes()):
            raise ServiceError(
                f"{hop.place}: the {key.get_name()} key {key.fingerprint} of {hop.address} is revoked in {revoking}; "
                "someone may use it in the host's place: ask its administrators"
            )
        file = hop.known_hosts[0]
        port = f" -p {hop.port}" if hop.port != SSH_PORT else ""
        remedy = (
            f"ssh-keyscan{port} {hop.host} >> {file}"
            if self._direct
            else f"echo '{hostname} {key.get_name()} {key.get_base64()}' >> {file}"
        )
        raise ServiceError(
            f"{hop.place}: {hop.address} is not in {file}; if its {key.get_name()} key is {key.fingerprint}, add it "
            f"with: {remedy}"
        )


def _changed_key(hop: Hop, error: BadHostKeyException) -> str:
    got, expected = error.key, error.expected_key
    return (
        f"the key of {hop.address} has changed: it is {got.get_name()} {got.fingerprint}, {hop.known_hosts[0]} has "
        f"{expected.get_name()} {expected.fingerprint}; someone may be in between, or it was installed anew: then "
        f"forget the old key with: ssh-keygen -R '{hop.key_name}' -f {hop.known_hosts[0]}"
    )


def _channel(client: SFTPClient) -> Channel:
    channel = client.get_channel()
    assert channel is not None  # noqa: S101 - it was made of one
    return channel


def _close(what: Channel | SFTPClient) -> None:
    with contextlib.suppress(SSHException, EOFError, OSError):  # it counts as closed before the host learns of it
        what.close()


def _send(channel: Channel, data: bytes) -> None:
    with contextlib.suppress(OSError):  # a program need not read its input to the end
        channel.sendall(data)
        channel.shutdown_write()


def _read(receive: Callable[[int], bytes]) -> bytes:
    return b"".join(iter(lambda: receive(_CHUNK), b""))


def _reason(error: Exception) -> str:
    """Return an exception's message; some network errors have only a name."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
