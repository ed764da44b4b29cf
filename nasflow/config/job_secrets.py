"""What jobs get of a search's secrets, and what of the controller's environment is kept from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from nasflow.config.search import SearchConfig
from nasflow.config.secret.secret_url import SecretUrl, check_folder_url
from nasflow.config.secret.secrets import EnvironmentSecret, SecretLocation, reveal, secrets_of
from nasflow.errors import ConfigError


@dataclass(frozen=True)
class JobSecrets:
    """The secrets of a search from the point of view of its jobs.

    Attributes:
        withheld: environment variables with secrets of the config, which jobs don't inherit.
        needed: those of them that jobs read where they run if nothing gives them the texts.
        texts: returns what jobs need, in the form of `nasflow.config.secret.secrets.give`; called when workers start.
            Raises ConfigError if it can't be read here.
        names: of these texts.
        only_here: keys of secrets that jobs need but can't read by themselves, not even with its variable set there.
    """

    withheld: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()
    texts: Callable[[], Mapping[str, str]] = dict
    names: tuple[str, ...] = ()
    only_here: tuple[str, ...] = ()


NO_SECRETS = JobSecrets()


def job_secrets(config: SearchConfig) -> JobSecrets:
    """Return the secrets of a search: its jobs need the URL of checkpoints."""
    withheld = frozenset(secret.env for _, secret in secrets_of(config) if isinstance(secret, EnvironmentSecret))
    url = config.checkpoint.url
    if url is None or (isinstance(url, SecretUrl) and not url.has_password):
        return JobSecrets(withheld)
    if isinstance(url, EnvironmentSecret):
        return JobSecrets(withheld, frozenset({url.env}), partial(_texts, url), (str(url),))
    return JobSecrets(withheld, texts=partial(_texts, url), names=(str(url),), only_here=("checkpoint.url",))


def _texts(url: SecretLocation) -> Mapping[str, str]:
    text = reveal(url, "checkpoint.url")
    try:
        check_folder_url(text)
    except ValueError as error:
        raise ConfigError(f"checkpoint.url: {error}") from None
    return {str(url): text}
