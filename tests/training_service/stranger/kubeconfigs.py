"""Writes kubeconfigs."""

from pathlib import Path
from typing import Any

import yaml


def written(folder: Path, user: Any, server: str = "https://127.0.0.1:9", **cluster: Any) -> str:
    """A kubeconfig without what is None."""
    known = {key: value for key, value in cluster.items() if value is not None}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, **known}}],
        "users": [] if user is None else [{"name": "u", "user": user}],
    }
    (folder / "kube").write_text(yaml.safe_dump(config))
    return str(folder / "kube")
