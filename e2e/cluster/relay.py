"""Doors from the machine into a cluster's network: a port on 127.0.0.1 for an address inside.

No interface joins the two networks, so nothing on the machine can collide with a cluster, nor a cluster with another.
A socket belongs to the network namespace of the thread that made it. One thread therefore lives inside and does
nothing but make sockets; connecting and copying happen on the event loop outside.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

_CLONE_NEWNET = 0x40000000
_CHUNK = 1 << 16


def _enter(pid: int) -> None:
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        # os.setns exists from Python 3.12 on.
        if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns into the cluster's network failed")
    finally:
        os.close(handle)


class Relay:
    """All doors into the network of one process."""

    def __init__(self, pid: int) -> None:
        self._inside = ThreadPoolExecutor(1, initializer=_enter, initargs=(pid,))
        self._ports: dict[tuple[str, int], int] = {}
        self._servers: list[asyncio.Server] = []
        # After a client's half-close nothing in the event loop refers strongly to the pair any more: without this set
        # the garbage collector takes it away while the answer is still to come.
        self._carrying: set[asyncio.Task[None] | None] = set()

    async def open(self, host: str, port: int) -> int:
        """Return the port on 127.0.0.1 that leads to this address; the same one when asked again."""
        if (host, port) not in self._ports:
            server = await asyncio.start_server(
                lambda reader, writer: self._hold(reader, writer, host, port), "127.0.0.1", 0
            )
            self._servers.append(server)
            self._ports[host, port] = server.sockets[0].getsockname()[1]
        return self._ports[host, port]

    async def answers(self, host: str, port: int) -> bool:
        """Whether somebody listens there."""
        try:
            (await self._connect(host, port)).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Shut all doors."""
        for server in self._servers:
            server.close()
        self._inside.shutdown(wait=False)

    async def _connect(self, host: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        outgoing = await loop.run_in_executor(self._inside, socket.socket, socket.AF_INET, socket.SOCK_STREAM)
        outgoing.setblocking(False)
        try:
            await loop.sock_connect(outgoing, (host, port))
        except BaseException:
            outgoing.close()
            raise
        outgoing.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return outgoing

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        task = asyncio.current_task()
        self._carrying.add(task)
        try:
            await self._carry(reader, writer, host, port)
        finally:
            self._carrying.discard(task)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(sock=await self._connect(host, port))
        except OSError:
            writer.transport.abort()
            return
        directions = (_copy(reader, there_writer), _copy(there_reader, writer))
        await asyncio.gather(*directions, return_exceptions=True)
        for end in (writer, there_writer):
            end.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        # Half-closed is a state of its own: a client that has said everything still waits for the answer.
        with suppress(OSError):
            writer.write_eof()
    except OSError:
        # One side broke off, so the other must see it break off, and not a well-formed end.
        writer.transport.abort()
