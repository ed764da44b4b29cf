"""The criteria of `Match` in the user's OpenSSH client configuration."""

import re
from pathlib import Path

import pytest

from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.ssh.connect.route import find_route


def hop_port(folder: Path, text: str) -> int:
    """Of the host `inner`, in a configuration."""
    (folder / "config").write_text(text)
    service = SshServiceConfig.model_validate({"hosts": [{"host": "inner"}], "ssh_config": str(folder / "config")})
    (hop,) = find_route(service.hosts[0], service)
    return hop.port


@pytest.mark.parametrize(
    ("criteria", "matches"),
    [
        ("Host inner", True),
        ("Host other", False),
        ("\thost other", False),
        ("all # always", True),
        ("host inner # at home", True),
        ("!Host inner", False),
        ("originalhost 'in*' !User nobody", True),
    ],
)
def test_criteria_of_match(tmp_path, criteria, matches):
    """Their keywords in any case, as in OpenSSH; paramiko knows those in lower case, and takes others for fulfilled."""
    assert hop_port(tmp_path, f"Match {criteria}\nPort 2222\n") == (2222 if matches else 22)


KNOWN = "all, canonical, final, host, originalhost, user, localuser, exec"


@pytest.mark.parametrize(
    ("criteria", "reason"),
    [
        ("localnetwork 10.0.0.0/8", f"'Match localnetwork' can't be judged here, only {KNOWN} can"),
        ("host other !Tagged work", f"'Match !Tagged' can't be judged here, only {KNOWN} can"),
        ("host 'inner", "No closing quotation"),
    ],
    ids=["localnetwork", "tagged", "quote"],
)
def test_criteria_of_match_that_can_t_be_judged_here(tmp_path, criteria, reason):
    (tmp_path / "more").write_text(f"Match {criteria}\nPort 2222\n")
    for text in (f"Match {criteria}\n", "Include more\n"):
        with pytest.raises(ServiceError, match=f"config can't be understood: {re.escape(reason)}; mend it, or name"):
            hop_port(tmp_path, text)
