"""Logging in to one machine: which keys are offered, and what to do when none is accepted."""

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from paramiko import (
    AuthenticationException,
    BadAuthenticationType,
    ECDSAKey,
    Ed25519Key,
    PasswordRequiredException,
    PKey,
    RSAKey,
    SSHConfig,
    SSHException,
    Transport,
)
from paramiko.auth_strategy import AuthSource, AuthStrategy, SourceResult

from nasflow.config.secret.secrets import reveal
from nasflow.errors import ServiceError
from nasflow.training_service.ssh.connect.agent_keys import ask_agent
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.connect.route import Hop

_KEY_KINDS: tuple[type[PKey], ...] = (Ed25519Key, ECDSAKey, RSAKey)


class _Offer(AuthSource):
    """One way to log in; `authenticate` returns what the host requires in addition, such as a second factor."""

    def __init__(self, username: str, name: str, send: Callable[[Transport], list[str]]):
        super().__init__(username)
        self.name = name
        self._send = send

    def authenticate(self, transport: Transport) -> list[str]:
        return self._send(transport)


class Login(AuthStrategy):
    """Offers the keys that a hop's config names: its key file, the agent's keys, OpenSSH's key files, then a password.

    Only configured ways are tried, and each key once, because servers disconnect after a few wrong ones. So of the
    agent's keys those come first whose files are named, as in OpenSSH.
    """

    def __init__(self, hop: Hop, timeout: float):
        super().__init__(SSHConfig())
        self._hop = hop
        self._timeout = timeout
        self._locked: Path | None = None

    def authenticate(self, transport: Transport) -> list[SourceResult]:
        """Log in on a connection.

        Raises:
            Refused: nothing accepted; the message advises what to do.
            ServiceError: nothing to offer, or a key file that can't be used.
            Unreachable: no answer, or the connection broke.
        """
        refused = list[str]()
        allowed = list[str]()
        for offer in self.get_sources():
            began = time.monotonic()
            try:
                wanted = offer.authenticate(transport)
            except BadAuthenticationType as error:
                allowed = error.allowed_types
            except AuthenticationException as error:
                if time.monotonic() - began >= self._timeout:
                    raise Unreachable(f"{self._hop.place}: {self._hop.address} does not answer to a login") from error
            except (SSHException, EOFError, OSError) as error:
                raise Unreachable(f"{self._hop.place}: the connection broke during the login: {error}") from error
            else:
                if not wanted:
                    return []
            refused.append(offer.name)
            if not transport.is_active():  # after too many keys
                break
        kind = Refused if refused else ServiceError
        raise kind(f"{self._hop.place}: {self._advice(refused, allowed)}")

    def get_sources(self) -> Iterator[_Offer]:
        """Yield the ways to log in, in order."""
        hop = self._hop
        if hop.key_file and (key := self._load(hop.key_file)):
            yield self._key(str(hop.key_file), key)
        if hop.agent and (agent := ask_agent(self._timeout)):
            named = self._public_keys()
            try:
                for held in sorted(agent.get_keys(), key=lambda key: key.blob not in named):
                    if held.blob in named or not hop.identities_only:
                        yield self._key(f"{held.comment or held.get_name()} (ssh-agent)", held)
            finally:
                agent.close()
        for file in hop.identities:
            if file.exists() and not _public_key(file) and (key := self._load(file)):
                yield self._key(str(file), key)
        if hop.password is not None:
            text = reveal(hop.password, f"{hop.place}: password")
            yield _Offer(hop.user, "the password", lambda transport: transport.auth_password(hop.user, text))

    def _public_keys(self) -> set[bytes]:
        """Return the public halves, and certificates, of the keys that the config names."""
        own = [self._hop.key_file] if self._hop.key_file else []
        files = [Path(f"{file}{end}") for file in (*own, *self._hop.identities) for end in ("", ".pub", "-cert.pub")]
        return {blob for file in files if (blob := _public_key(file))}

    def _key(self, name: str, key: PKey) -> _Offer:
        user = self._hop.user
        return _Offer(user, name, lambda transport: transport.auth_publickey(user, key))

    def _load(self, file: Path) -> PKey | None:
        """Load a private key; None if it is encrypted without a passphrase, because the agent may have it unlocked."""
        hop = self._hop
        try:
            text = file.read_text()
        except FileNotFoundError:
            raise ServiceError(f"{hop.place}: there is no key file {file}; mend key_file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ServiceError(f"{hop.place}: the key file {file} can't be read: {error}") from error
        if "PRIVATE KEY-----" not in text:
            raise ServiceError(f"{hop.place}: {file} is no private key; name the file without '.pub' in key_file")
        passphrase = reveal(hop.passphrase, f"{hop.place}: passphrase") if hop.passphrase else None
        for kind in _KEY_KINDS:
            try:
                key = kind.from_private_key_file(str(file), passphrase)
            except PasswordRequiredException:
                self._locked = self._locked or file
                return None
            except (SSHException, ValueError, IndexError):
                continue  # another kind of key, or a wrong passphrase; paramiko does not distinguish them
            certificate = file.with_name(f"{file.name}-cert.pub")
            if certificate.exists():
                key.load_certificate(str(certificate))
            return key
        if passphrase is None:
            raise ServiceError(
                f"{hop.place}: {file} holds no key of a kind that is known here; use an ed25519, ECDSA or RSA key"
            )
        raise ServiceError(
            f"{hop.place}: the passphrase does not open the key {file}; check what 'passphrase' refers to"
        )

    def _advice(self, refused: list[str], allowed: list[str]) -> str:
        hop = self._hop
        who = f"{hop.user}@{hop.host}"
        if self._locked and (not refused or self._locked == hop.key_file):
            return f"the key {self._locked} is encrypted; add 'passphrase: {{env: NAME}}', or load it into an ssh-agent"
        if not refused:
            return "there is no key to log in with; set key_file or password there, or load a key into an ssh-agent"
        port = f" -p {hop.port}" if hop.port != 22 else ""
        if refused == ["the password"]:
            if allowed and not {"password", "keyboard-interactive"} & set(allowed):
                return f"{who} takes no password, but {' and '.join(allowed)}; set key_file in its place"
            return f"{who} does not accept the password; check 'user' and what 'password' refers to"
        file = next((f" -i {name}" for name in refused if name.startswith("/")), "")
        return (
            f"{who} does not accept {', '.join(refused)}; "
            f"check 'user', and let the key in there with: ssh-copy-id{file}{port} {who}"
        )


def _public_key(file: Path) -> bytes:
    """Return the public key, or the certificate, that a file holds; empty if it holds none."""
    try:
        kind, text, *_ = file.read_bytes().split(maxsplit=2)
        blob = base64.b64decode(text, validate=True)
    except (OSError, ValueError):
        return b""
    return blob if blob[4:].startswith(kind) else b""
