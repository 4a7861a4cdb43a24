"""Keys, certificates and tokens of one cluster. All of it is made anew for every cluster and dies with it."""

from __future__ import annotations

import base64
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from e2e.cluster.command import run
from e2e.cluster.layout import API_ADDRESS, SERVICE_ADDRESS, Node

if TYPE_CHECKING:
    from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "365")


@dataclass(frozen=True)
class Identities:
    """The certificate authority's folder and the bearer token of everybody who talks to the API server."""

    folder: Path
    tokens: dict[str, str]

    def kubeconfig(self, user: str, server: str) -> str:
        """Write a self-contained kubeconfig for one user."""
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "forebay",
                "clusters": [
                    {"name": "forebay", "cluster": {"server": server, "certificate-authority-data": authority}}
                ],
                "users": [{"name": user, "user": {"token": self.tokens[user]}}],
                "contexts": [{"name": "forebay", "context": {"cluster": "forebay", "user": user}}],
            },
            indent=1,
        )


def make(folder: Path, nodes: list[Node]) -> Identities:
    """Write the authority, the serving certificates, the service account key and the token file."""
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    _certificate(folder, "ca", "/CN=forebay-local", ())
    names = f"IP:127.0.0.1,IP:{API_ADDRESS},IP:{SERVICE_ADDRESS},DNS:localhost,DNS:kubernetes.default.svc"
    _signed(folder, "apiserver", "/CN=kube-apiserver", f"subjectAltName={names}", "extendedKeyUsage=serverAuth")
    _signed(folder, "kubelet-client", "/O=system:masters/CN=kube-apiserver", "extendedKeyUsage=clientAuth")
    for node in nodes:
        names = f"IP:{node.address},DNS:{node.name}"
        _signed(folder, node.name, f"/CN={node.name}", f"subjectAltName={names}", "extendedKeyUsage=serverAuth")
    # Service account tokens are signed with RSA as on clusters that kubeadm makes, so what verifies them is real.
    run(["openssl", "genrsa", "-out", f"{folder}/sa.key", "2048"])
    run(["openssl", "rsa", "-in", f"{folder}/sa.key", "-pubout", "-out", f"{folder}/sa.pub"])
    return Identities(folder, _tokens(folder, nodes))


def _tokens(folder: Path, nodes: list[Node]) -> dict[str, str]:
    groups = {
        "admin": "system:masters",
        "system:kube-controller-manager": "",
        "system:kube-scheduler": "",
        "system:kube-proxy": "",
        **{f"system:node:{node.name}": "system:nodes" for node in nodes},
    }
    tokens = {user: secrets.token_hex(16) for user in groups}
    lines = [f'{token},{user},{user},"{groups[user]}"\n' for user, token in tokens.items()]
    (folder / "tokens.csv").write_text("".join(lines))
    return tokens


def _certificate(folder: Path, name: str, subject: str, options: tuple[str, ...]) -> None:
    files = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt")
    run(["openssl", "req", "-x509", *_KEY, *files, "-subj", subject, *options])


def _signed(folder: Path, name: str, subject: str, *extensions: str) -> None:
    options = ["-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key"]
    for extension in ("basicConstraints=critical,CA:FALSE", *extensions):
        options += ["-addext", extension]
    _certificate(folder, name, subject, tuple(options))
