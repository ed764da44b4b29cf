"""The token with which requests to Azure are made."""

import time
from typing import Any

from nasflow.clean_text import one_line
from nasflow.config.secret.secrets import Secret
from nasflow.errors import ServiceError
from nasflow.training_service.hosted.http_client import header_secret

_KEY = "training_service.token"
_BEFORE_ITS_END = 600.0  # seconds


class AzureToken:
    """A token of the config, or one of the account that azure-identity finds, renewed in time.

    Args:
        secret: of the config.
        scope: what the token is for, as https://management.azure.com/.default.
    """

    def __init__(self, secret: Secret | None, scope: str):
        self._secret, self._scope = secret, scope
        self._credential: Any = None
        self._held = ""
        self._renew_at = float("-inf")

    def text(self) -> str:
        """Return the token.

        Raises:
            ConfigError: the config's can't be read.
            ServiceError: azure-identity is not installed, or finds no account.
        """
        if self._secret is not None:
            self._held = self._held or header_secret(self._secret, _KEY)
        elif time.time() >= self._renew_at:
            self._renew()
        return self._held

    def drop(self) -> None:
        """Forget a token that is not taken."""
        self._credential, self._held, self._renew_at = None, "", float("-inf")

    def _renew(self) -> None:
        try:
            from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - of an extra
        except ModuleNotFoundError as error:
            raise ServiceError(
                f"{_KEY}: without it, 'azureml' needs the module '{error.name}'; install nasflow[azureml]"
            ) from None
        self._credential = self._credential or DefaultAzureCredential()
        try:
            token = self._credential.get_token(self._scope)
        except Exception as error:  # any of each kind of account
            if self._held:  # which may still be taken; Azure says if it is not
                return
            said = one_line(" ".join(str(error).split())[:300])
            raise ServiceError(
                f"{_KEY}: azure-identity finds no account to sign in with; run `az login`, or set AZURE_TENANT_ID, "
                f"AZURE_CLIENT_ID and AZURE_CLIENT_SECRET, or give a token ({said})"
            ) from None
        self._held, self._renew_at = token.token, token.expires_on - _BEFORE_ITS_END
