"""The ASGI middleware: what passes, what is measured, what is refused; and that the app never notices."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuagent_client.allocator import Torch
from gpuagent_client.serving import AsgiMiddleware, Gate, RequestMemory
from tests.client.apps.faketorch import GIB, FakeTorch
from tests.client.serving.bench import MIB, Client, FakeProcess, Response, answer, in_loop, settle


class App:
    """Needs 300 MiB for each request and keeps 100 MiB of them; waits in the middle if it is told to."""

    def __init__(self, process: FakeProcess) -> None:
        self.process = process
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.heard: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """One request."""
        self.process.fake.allocate(300 * MIB)
        self.heard.append(await receive())
        await self.may_end.wait()
        self.process.fake.free(200 * MIB)
        self.process.now += 0.5
        await answer(send)


def test_a_request_alone_is_measured_exactly() -> None:
    """Its peak, what it added, what it left, and how long it took."""

    async def scene() -> None:
        process = FakeProcess()
        process.fake.allocate(GIB)
        seen: list[RequestMemory] = []
        app = AsgiMiddleware(App(process), on_request=seen.append, process=process)

        assert (await Client(app, "/predict/17").ask()).status == 200

        ((route, _, change),) = seen
        assert route == "POST /predict/{}"
        assert change is not None
        assert change.exact
        assert (change.peak_bytes, change.added_bytes) == (GIB + 300 * MIB, 300 * MIB)
        assert change.delta_bytes == 100 * MIB

    in_loop(scene())


def test_requests_at_a_time_share_their_peak() -> None:
    """Neither can say whose it was, so neither is called exact."""

    async def scene() -> None:
        process = FakeProcess()
        process.fake.allocate(GIB)
        inner = App(process)
        inner.may_end.clear()
        seen: list[RequestMemory] = []
        app = AsgiMiddleware(inner, Gate(2), on_request=seen.append, process=process)
        tasks = [Client(app).start(), Client(app).start()]
        await settle()
        inner.may_end.set()
        await asyncio.gather(*tasks)

        assert [one.change.exact for one in seen if one.change] == [False, False]

    in_loop(scene())


def test_who_finds_no_room_gets_503() -> None:
    """With Retry-After; those inside and in the queue are served."""

    async def scene() -> None:
        process = FakeProcess()
        inner = App(process)
        inner.may_end.clear()
        app = AsgiMiddleware(inner, Gate(1, 2, state=process.state), process=process)
        clients = [Client(app) for _ in range(6)]
        tasks = [client.start() for client in clients]
        await settle()
        refused = [client.response for client in clients if client.response.status]
        inner.may_end.set()
        await asyncio.gather(*tasks)

        assert [response.status for response in refused] == [503] * 3
        assert refused[0].headers["retry-after"] == "1"
        assert refused[0].headers["content-length"] == str(len(refused[0].body))
        assert sorted(client.response.status for client in clients) == [200] * 3 + [503] * 3

    in_loop(scene())


def test_a_critical_level_closes_the_gpu_routes_only() -> None:
    """Health checks and the like go on."""

    async def scene() -> None:
        process = FakeProcess()
        process.agent_says("critical")
        app = AsgiMiddleware(App(process), Gate(8, state=process.state), paths=["/predict/"], process=process)

        refused = await Client(app, "/predict").ask()
        assert (refused.status, refused.headers["retry-after"]) == (503, "2")
        assert (await Client(app, "/predict/17").ask()).status == 503
        assert (await Client(app, "/predictions").ask()).status == 200
        assert (await Client(app, "/healthz").ask()).status == 200

    in_loop(scene())


def test_a_body_that_came_while_waiting_is_not_lost() -> None:
    """The app hears every message once, in order."""

    async def scene() -> None:
        process = FakeProcess()
        gate = Gate(1, 1, state=process.state)
        first = gate.try_acquire(lambda: None)
        heard: list[bytes] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            while (message := await receive()).get("more_body"):
                heard.append(message["body"])
            heard.append(message["body"])
            await answer(send)

        client = Client(AsgiMiddleware(inner, gate, process=process), body=(b"one", b"two", b"three"))
        task = client.start()
        await settle()
        gate.release(first)
        await task

        assert heard == [b"one", b"two", b"three"]
        assert client.response.status == 200

    in_loop(scene())


def test_a_client_that_hangs_up_in_the_queue_is_not_served() -> None:
    """Under load it would be work for nobody, and a place in the queue."""

    async def scene() -> None:
        process = FakeProcess()
        inner = App(process)
        gate = Gate(1, 1, state=process.state)
        first = gate.try_acquire(lambda: None)
        app = AsgiMiddleware(inner, gate, process=process)
        gone = Client(app)
        task = gone.start()
        await settle()
        gone.interrupt()
        await task
        assert (gone.response.messages, inner.heard) == ([], [])

        stays = Client(app)
        task = stays.start()
        await settle()
        gate.release(first)
        await task
        assert stays.response.status == 200

    in_loop(scene())


def test_a_hang_up_after_the_wait_reaches_the_app() -> None:
    """The app's own `receive` gets what the middleware was waiting for."""

    async def scene() -> None:
        process = FakeProcess()
        gate = Gate(1, 1, state=process.state)
        first = gate.try_acquire(lambda: None)
        heard: list[str] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            heard.extend([(await receive())["type"], (await receive())["type"]])

        client = Client(AsgiMiddleware(inner, gate, process=process))
        task = client.start()
        await settle()
        gate.release(first)
        await settle()
        client.interrupt()
        await task

        assert heard == ["http.request", "http.disconnect"]

    in_loop(scene())


def test_an_error_of_the_app_stays_its_own() -> None:
    """It is measured, its place is free, and the server gets to see it."""

    async def scene() -> None:
        process = FakeProcess()
        gate = Gate(1, 0, state=process.state)
        seen: list[RequestMemory] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            process.fake.allocate(MIB)
            raise MemoryError("CUDA out of memory")

        app = AsgiMiddleware(inner, gate, on_request=seen.append, process=process)
        with pytest.raises(MemoryError, match="CUDA out of memory"):
            await Client(app).ask()

        assert not gate.busy
        assert len(seen) == 1

    in_loop(scene())


def test_a_cancelled_request_frees_its_place() -> None:
    """Servers cancel what outlives their patience."""

    async def scene() -> None:
        process = FakeProcess()
        inner = App(process)
        inner.may_end.clear()
        gate = Gate(1, 0, state=process.state)
        task = Client(AsgiMiddleware(inner, gate, process=process)).start()
        await settle()
        assert gate.busy
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert not gate.busy

    in_loop(scene())


def test_a_stream_is_inside_to_its_end() -> None:
    """The first bytes of a generation are not its end."""

    async def scene() -> None:
        process = FakeProcess()
        gate = Gate(1, 0, state=process.state)
        busy: list[bool] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(3):
                await send({"type": "http.response.body", "body": b"token ", "more_body": True})
                busy.append(gate.busy)
            await send({"type": "http.response.body", "body": b""})

        response = await Client(AsgiMiddleware(inner, gate, process=process)).ask()

        assert response.body == b"token token token "
        assert busy == [True] * 3
        assert not gate.busy

    in_loop(scene())


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_what_is_no_http_request_passes(kind: str) -> None:
    """With the very callables of the server, and without a place in the gate."""

    async def scene() -> None:
        process = FakeProcess()
        gate = Gate(1, 0, state=process.state)
        gate.try_acquire(lambda: None)
        got: list[Any] = []

        async def inner(*arguments: Any) -> None:
            got.extend(arguments)

        scope, receive, send = {"type": kind}, object(), object()
        await AsgiMiddleware(inner, gate, process=process)(scope, receive, send)  # type: ignore[arg-type]

        assert got == [scope, receive, send]

    in_loop(scene())


def test_a_response_tells_of_the_gpu() -> None:
    """For people in X-GPU-Memory, for browsers' tools in Server-Timing; the app's own headers stay."""

    async def scene() -> None:
        process = FakeProcess()
        process.fake.allocate(GIB)

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            process.fake.allocate(GIB)
            process.now += 0.25
            await answer(send, headers=((b"x-own", b"1"),))

        app = AsgiMiddleware(inner, header=True, process=process)
        response = await Client(app).ask()

        assert response.headers["x-own"] == "1"
        assert response.headers["x-gpu-memory"] == "NVIDIA GeForce RTX 4090, 24.00 GiB total, 2.00 GiB peak used"
        assert response.headers["server-timing"].endswith('desc="peak 2.00 GiB"')

    in_loop(scene())


def test_without_cuda_requests_are_counted_only() -> None:
    """And nothing is called that could start it."""

    async def scene() -> None:
        process = FakeProcess(FakeTorch())
        seen: list[RequestMemory] = []

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            await answer(send)

        app = AsgiMiddleware(inner, on_request=seen.append, header=True, process=process)
        response = await Client(app).ask()

        assert seen[0].change is None
        assert response.headers["x-gpu-memory"].startswith("CPU")
        assert process.fake.calls == []

    in_loop(scene())


def test_a_failure_of_the_clients_own_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback that fails is logged; developers get to see it under pytest."""

    async def scene() -> None:
        process = FakeProcess()

        def broken(_: RequestMemory) -> None:
            raise KeyError("own mistake")

        gate = Gate(1, 0, state=process.state)
        app = AsgiMiddleware(App(process), gate, on_request=broken, process=process)
        with pytest.raises(KeyError):
            await Client(app).ask()
        monkeypatch.setenv("GPUAGENT_STRICT", "0")
        assert (await Client(app).ask()).status == 200
        assert not gate.busy

    in_loop(scene())


def test_a_torch_that_is_imported_later_is_found() -> None:
    """The middleware is there before the model is."""

    async def scene() -> None:
        process = FakeProcess(FakeTorch())
        process.torch = Torch(modules := {})
        seen: list[RequestMemory] = []
        app = AsgiMiddleware(App(process), on_request=seen.append, process=process)
        await Client(app).ask()
        modules.update(process.fake.modules)
        process.fake.start_cuda()
        await Client(app).ask()

        assert [one.change is None for one in seen] == [True, False]

    in_loop(scene())


def test_a_loop_that_is_not_asyncios_has_no_queue() -> None:
    """Under trio: who would have to wait is told to come back, and the others are served."""
    process = FakeProcess()
    gate = Gate(1, 5, state=process.state)
    first = gate.try_acquire(lambda: None)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    statuses = []
    for _ in range(2):
        response = Response()
        scope = {"type": "http", "method": "GET", "path": "/"}
        with pytest.raises(StopIteration):
            AsgiMiddleware(inner, gate, process=process)(scope, receive, response.send).__await__().send(None)  # type: ignore[arg-type]
        statuses.append(response.status)
        gate.release(first)

    assert statuses == [503, 200]
