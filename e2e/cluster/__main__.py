"""The command line: python -m e2e.cluster up | down | run CMD... | env | forward | build | images."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from typing import Annotated

import typer

from e2e.cluster import build, debian, keeper_client, machine
from e2e.cluster import images as image_builds
from e2e.cluster.cluster import Cluster, standing
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout
from e2e.cluster.progress import say

app = typer.Typer(
    help="A real Kubernetes on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Name = Annotated[
    str | None, typer.Option(help="Which cluster; not needed while there is one.", envvar="FOREBAY_CLUSTER")
]


def _free_name() -> str:
    taken = standing()
    return next(name for name in ("dev", *(f"dev-{number}" for number in range(2, 100))) if name not in taken)


def _the_one(name: str | None) -> str:
    names = standing()
    if name:
        return name
    if len(names) != 1:
        raise ClusterError(
            f"Which cluster? --name one of: {', '.join(names)}" if names else "No cluster stands; start one with `up`."
        )
    return names[0]


@app.command()
def up(
    name: Annotated[str | None, typer.Option(help="Name of the cluster; the first free of dev, dev-2, ...")] = None,
    nodes: Annotated[int, typer.Option(min=1, max=8, help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="Fake GPUs on every node.")] = 8,
    images: Annotated[bool, typer.Option(help="Also build the images and load them into every node.")] = False,
) -> None:
    """Start a cluster that stands until `down`."""
    archives = []
    if images:
        machine.check()
        archives = image_builds.build_all()
    started = time.monotonic()
    cluster = Cluster.start(name or _free_name(), nodes, gpus_per_node, archives)
    cluster.detach()
    say(f"Cluster {cluster.name} is up after {time.monotonic() - started:.1f} s.")
    env(cluster.name)


@app.command()
def down(name: Name = None) -> None:
    """Take a cluster down; nothing of it is left."""
    layout = Layout(_the_one(name))
    if keeper_client.stands(layout):
        keeper_client.KeeperClient(layout).down(keep_logs=False)
    keeper_client.clear(layout)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(context: typer.Context, name: Name = None) -> None:
    """Run a command inside: kubectl, helm, and every pod and service address."""
    cluster = Cluster.attach(_the_one(name))
    os.environ.update(KUBECONFIG=str(cluster.kubeconfig), PATH=cluster.path)
    command = context.args or [os.environ.get("SHELL", "/bin/sh")]
    argv = [*cluster.enter_prefix(), *command]
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - the command is the user's own


@app.command()
def env(name: Name = None) -> None:
    """Print what a shell on this machine needs: eval "$(python -m e2e.cluster env)"."""
    cluster = Cluster.attach(_the_one(name))
    print(f"export KUBECONFIG={shlex.quote(str(cluster.host_kubeconfig))}")
    print(f"export PATH={shlex.quote(cluster.env['PATH'].removesuffix(os.environ['PATH']))}$PATH")


@app.command()
def forward(service: str, port: int, namespace: str = "default", name: Name = None) -> None:
    """Open a port on 127.0.0.1 for a service, as long as the cluster stands, and print it."""
    print(Cluster.attach(_the_one(name)).relay_service(namespace, service, port))


@app.command("build")
def build_programs() -> None:
    """Build Kubernetes, CoreDNS and helm into the cache, and print what to add to PATH."""
    machine.check()
    debian.ensure(debian.NODE)
    print(build.programs().path)


@app.command()
def images() -> None:
    """Build the images from their Dockerfiles and print the archives."""
    machine.check()
    for archive in image_builds.build_all():
        print(archive)


def main() -> None:
    """Turn what went wrong into one message, and a polite request to end into an orderly end."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    signal.signal(signal.SIGHUP, lambda number, _frame: sys.exit(128 + number))
    try:
        app()
    except ClusterError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
