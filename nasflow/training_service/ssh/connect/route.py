"""The route to a host: its config entry, completed by the user's OpenSSH client configuration."""

import getpass
import glob
import io
import re
import shlex
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from paramiko import SSHConfig, SSHException
from paramiko.config import SSH_PORT

from nasflow.config.secret.secrets import Secret
from nasflow.config.services.ssh import SshHostConfig, SshServiceConfig
from nasflow.errors import ServiceError

_JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>.+)@)?(?P<host>\[[^\]]+\]|[^:@]+)(?::(?P<port>\d+))?/?")
_OPTION = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.+)")  # as paramiko
_MATCH_ALONE = ("all", "canonical", "final")  # those without a parameter
_MATCH_KNOWN = (*_MATCH_ALONE, "host", "originalhost", "user", "localuser", "exec")  # those that paramiko judges
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
_NESTED_INCLUDES = 16  # as OpenSSH
_MOST_HOPS = 8


@dataclass(frozen=True)
class Hop:
    """One machine on the route; the last one is the host itself.

    Attributes:
        place: its place in the config, for errors.
        host: name or address to connect to, at `port`.
        key_name: its name in the known hosts.
        key_file: the private key of the config, which must be usable.
        identities: more private keys to offer, if they exist.
        agent: whether to offer the keys of a running ssh-agent too.
        identities_only: of these, offer only `key_file` and `identities`.
        known_hosts: files with the hosts' keys.
        proxy_command: a shell command; its input and output replace a TCP connection.
    """

    place: str
    host: str
    port: int
    user: str
    key_name: str
    key_file: Path | None
    passphrase: Secret | None
    password: Secret | None
    identities: tuple[Path, ...]
    agent: bool
    identities_only: bool
    known_hosts: tuple[Path, ...]
    proxy_command: str | None

    @property
    def address(self) -> str:
        """The host and port, for errors."""
        return f"{self.host} port {self.port}"


def place_of(host: SshHostConfig) -> str:
    """Return a host's place in the config, for errors."""
    return f"training_service.hosts: '{host.name}'"


def find_route(host: SshHostConfig, service: SshServiceConfig) -> tuple[Hop, ...]:
    """Return the machines from here to a host, each reached through the one before it; the last is the host.

    The config takes precedence over the OpenSSH configuration. A proxy jump uses its own keys from there, or else the
    host's keys; a password is sent only to the host.

    Raises:
        ServiceError: the OpenSSH configuration can't be read, or a proxy jump is invalid.
    """
    return _Router(host, service).route()


class _Router:
    def __init__(self, host: SshHostConfig, service: SshServiceConfig):
        self._host = host
        self._file = _expanded(service.ssh_config, "training_service.ssh_config")
        self._known_hosts = _expanded(service.known_hosts, "training_service.known_hosts")
        self._place = place_of(host)
        self._client_config = self._read(self._file, _NESTED_INCLUDES)

    def route(self) -> tuple[Hop, ...]:
        host = self._host
        options = self._options(host.host, host.port, host.user)
        jumps, proxy_command = _proxy(options, host.proxy_jump)
        hops = self._through(jumps, 0)
        return (*hops, self._hop(self._place, options, None if jumps else proxy_command, host.password))

    def _through(self, jumps: list[str], depth: int) -> tuple[Hop, ...]:
        hops: tuple[Hop, ...] = ()
        for number, jump in enumerate(jumps):
            place = f"{self._place}: proxy_jump '{jump}'"
            match = _JUMP.fullmatch(jump)
            if match is None:
                raise ServiceError(f"{place}: write it as [user@]host[:port]")
            if depth > _MOST_HOPS:
                raise ServiceError(f"{place}: the ProxyJumps of {self._file} lead in a circle")
            port = int(match["port"]) if match["port"] else None
            options = self._options(match["host"].strip("[]"), port, match["user"])
            proxy_command = None
            if number == 0:  # the others are reached through those before them, regardless of their configuration
                own, proxy_command = _proxy(options, None)
                hops = self._through(own, depth + 1)
            hops = (*hops, self._hop(place, options, None if hops else proxy_command, None))
        return hops

    def _hop(self, place: str, options: dict[str, str], proxy_command: str | None, password: Secret | None) -> Hop:
        identities = tuple(Path(file).expanduser() for file in options.get("identityfile", ()))
        own_key = _expanded(self._host.key_file, f"{self._place}: key_file") if self._host.key_file else None
        is_jump = place != self._place
        if is_jump and identities:
            own_key = None
        home = Path.home() / ".ssh"
        more = options.get("userknownhostsfile", "none")
        name, port = options["hostname"], int(options.get("port", SSH_PORT))
        return Hop(
            place=place,
            host=name,
            port=port,
            user=options.get("user") or getpass.getuser(),
            key_name=options.get("hostkeyalias") or (name if port == SSH_PORT else f"[{name}]:{port}"),
            key_file=own_key,
            passphrase=self._host.passphrase,
            password=password,
            identities=() if own_key else identities or tuple(home / name for name in _DEFAULT_KEYS),
            agent=self._host.agent,
            identities_only=options.get("identitiesonly", "no").lower() == "yes",
            known_hosts=(
                self._known_hosts,
                *(self._named("UserKnownHostsFile", file) for file in more.split() if more.lower() != "none"),
            ),
            proxy_command=proxy_command,
        )

    def _options(self, name: str, port: int | None, user: str | None) -> dict[str, str]:
        """Return OpenSSH's options for a host, keys in lower case. The first value wins, so ours come first."""
        given = [("Port", port), ("User", user)]
        ours = "".join(f"{key} {value}\n" for key, value in given if value is not None)
        try:
            config = SSHConfig()
            config.parse(io.StringIO(f"{ours}{self._client_config}"))
            return dict(config.lookup(name))
        except (SSHException, ImportError, ValueError, KeyError) as error:
            raise self._not_understood(error) from error

    def _read(self, file: Path, nested: int) -> str:
        """Return the text of a configuration file, with its includes expanded."""
        try:
            text = file.read_text()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ServiceError(
                f"{self._place}: the OpenSSH configuration {file} can't be read ({error}); "
                "mend it, or name another file in training_service.ssh_config"
            ) from error
        return "\n".join(self._included(line, nested) for line in text.splitlines()) + "\n"

    def _included(self, line: str, nested: int) -> str:
        option = _OPTION.match(line)
        keyword, value = option.groups() if option else ("", "")
        if keyword.lower() == "match":
            return f"Match {self._criteria(value)}"
        if keyword.lower() != "include":
            return line
        if nested == 0:
            raise ServiceError(f"{self._place}: the Includes of {self._file} lead in a circle")
        paths = (self._file.parent / self._named("Include", pattern) for pattern in value.replace('"', "").split())
        files = [Path(found) for path in paths for found in sorted(glob.glob(str(path)))]  # noqa: PTH207 - it may be absolute
        return "".join(self._read(found, nested - 1) for found in files)

    def _criteria(self, text: str) -> str:
        """Return the criteria of a `Match`, their keywords in lower case: paramiko takes others for fulfilled."""
        try:
            words = iter(shlex.split(text))
        except ValueError as error:
            raise self._not_understood(error) from error
        criteria = list[str]()
        for word in words:
            if word.startswith("#"):
                break
            keyword = word.lower().removeprefix("!")
            if keyword not in _MATCH_KNOWN:
                raise self._not_understood(f"'Match {word}' can't be judged here, only {', '.join(_MATCH_KNOWN)} can")
            criteria += [word.lower(), *islice(words, keyword not in _MATCH_ALONE)]
        return shlex.join(criteria)

    def _not_understood(self, reason: str | Exception) -> ServiceError:
        return ServiceError(
            f"{self._place}: the OpenSSH configuration {self._file} can't be understood: {reason}; "
            "mend it, or name another file in training_service.ssh_config"
        )

    def _named(self, option: str, path: str) -> Path:
        return _expanded(path, f"{self._place}: {option} in {self._file}")


def _expanded(path: str, place: str) -> Path:
    """Return a path with `~` and `~user` expanded. Raises ServiceError, with the place, if there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ServiceError(f"{place}: '{path}': there is no home of that user here; write the path out") from None


def _proxy(options: dict[str, str], given: str | None) -> tuple[list[str], str | None]:
    """Return the jumps before a host, and the command that replaces a connection if there are none."""
    jump = given or options.get("proxyjump") or "none"
    jumps = [] if jump.lower() == "none" else [one.strip() for one in jump.split(",")]
    return jumps, options.get("proxycommand")
