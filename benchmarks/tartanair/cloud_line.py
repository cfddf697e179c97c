"""A simulated network line to a service on this machine, with latency and limited bandwidth."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import numpy as np
import numpy.typing as npt

__all__ = ["Line"]

_PIECE = 256 << 10
_AT_ONCE = 8 << 20  # bytes in flight per direction of a connection, unless its rate implies fewer


class Line:
    """Accepts connections on a free port of 127.0.0.1 and forwards them to `target`, HOST:PORT.

    `seconds_away` is the round-trip time, half of it in each direction; a new connection takes one
    more round trip, like TCP's handshake. `bytes_per_second` limits each direction for all
    connections together, `connection_bytes_per_second` each connection, like a TCP window. Bytes
    sent by the target are added to `counter[0]`, which may be memory-mapped. The line runs in a
    thread of this process until the `with` block ends.
    """

    def __init__(
        self,
        target: str,
        *,
        seconds_away: float = 0.0,
        bytes_per_second: float = float("inf"),
        connection_bytes_per_second: float = float("inf"),
        counter: npt.NDArray[np.int64] | None = None,
    ) -> None:
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self._delay = seconds_away / 2
        self._rate = bytes_per_second
        window = connection_bytes_per_second * self._delay
        self._window = max(_PIECE, int(min(_AT_ONCE, window or _AT_ONCE)))
        self._sent = np.zeros(1, np.int64) if counter is None else counter
        self._free = {"up": 0.0, "down": 0.0}  # when each direction is free, by the loop's clock
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._listener.setblocking(False)
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="line", daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Line:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._accepting)
        self._loop.close()

    async def _accept(self) -> None:
        connections: set[asyncio.Task[None]] = set()
        try:
            while True:
                client, _ = await self._loop.sock_accept(self._listener)
                task = self._loop.create_task(self._connect(client))
                connections.add(task)
                task.add_done_callback(connections.discard)
        finally:
            for task in connections:
                task.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _connect(self, client: socket.socket) -> None:
        server = socket.socket()
        with client, server, contextlib.suppress(OSError):
            for each in (client, server):
                each.setblocking(False)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.sock_connect(server, self._target)
            await asyncio.sleep(2 * self._delay)
            await asyncio.gather(
                self._carry(client, server, "up"), self._carry(server, client, "down")
            )

    async def _carry(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        """Forward bytes after their delay, until the source ends."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        room = _Room(self._window)

        async def receive() -> None:
            data = b"first"
            while data:
                data = await self._loop.sock_recv(source, min(_PIECE, await room.wait()))
                room.take(len(data))
                self._sent[0] += len(data) if way == "down" else 0
                self._free[way] = max(self._free[way], self._loop.time()) + len(data) / self._rate
                pieces.put_nowait((self._free[way] + self._delay, data))

        async def send() -> None:
            while True:
                due, data = await pieces.get()
                wait = due - self._loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                await self._loop.sock_sendall(sink, data)
                room.give(len(data))

        await asyncio.gather(receive(), send())


class _Room:
    """Limit of bytes in flight; `wait` returns the remaining number once it is positive."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes
        self._free = asyncio.Event()
        self._free.set()

    async def wait(self) -> int:
        await self._free.wait()
        return self._left

    def take(self, nbytes: int) -> None:
        self._left -= nbytes
        self._set()

    def give(self, nbytes: int) -> None:
        self._left += nbytes
        self._set()

    def _set(self) -> None:
        (self._free.set if self._left > 0 else self._free.clear)()
