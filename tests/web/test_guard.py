"""Whom the server answers, how much it takes, and that it stays up whatever is thrown at it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from sartor.web import work
from sartor.web.guard import Reply, is_loopback, split_host
from sartor.web.work import WorkerLimits

ASK = {"model": "gpt2-xl"}


def raw(server: Any, data: bytes, wait_s: float = 5.0) -> bytes:
    """What the server says to bytes sent as they are, until it closes or ``wait_s`` have passed."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=wait_s) as sock:
        sock.sendall(data)
        out = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := sock.recv(65536):
                out += piece
        return out


def test_it_listens_on_this_machine_alone_and_says_where(server: Any) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    assert "token" not in server.said
    assert server.get("/health").json()["status"] == "ok"


def processor_s(pid: int) -> float:
    """Seconds of processor a process has taken (Linux)."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def test_the_first_page_costs_little_more_than_loading_what_listens(start: Callable[..., Any]) -> None:
    """Neither Starlette nor NumPy nor a worker stands before it (benchmarks/bench_serve.py has seconds)."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("the processor's seconds are read from /proc")
    with subprocess.Popen([sys.executable, "-c", "import typer, uvicorn, h11, time; time.sleep(60)"]) as loading:
        server = start()
        taken = processor_s(server.pid)
        assert server.get("/").status_code == 200
        time.sleep(1.0)
        assert taken < 3 * processor_s(loading.pid)
        loading.kill()


def test_the_first_page_waits_for_no_library_of_answers() -> None:
    code = "import sys, sartor.web.server; print({'numpy', 'starlette', 'asyncio'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout.strip() == "{'asyncio'}"


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1:1", "127.0.0.1.evil.example", "", "localhost:99999", "[::2]"]
)
def test_a_foreign_host_is_refused(server: Any, host: str) -> None:
    reply = server.get("/", headers={"host": host})
    assert reply.status_code == 403
    assert "address this server was started on" in reply.json()["error"]["message"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1", "http://localhost", "file://"])
def test_a_foreign_origin_is_refused(server: Any, origin: str) -> None:
    assert server.post("/api/estimate", ASK, headers={"origin": origin}).status_code == 403


def test_its_own_page_and_no_page_at_all_are_answered(server: Any) -> None:
    assert server.post("/api/estimate", ASK, headers={"origin": server.url}).status_code == 200
    assert server.post("/api/estimate", ASK).status_code == 200
    cross = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}
    assert server.post("/api/estimate", ASK, headers=cross).status_code == 403


@pytest.mark.parametrize("path", ["/", "/app.js", "/health", "/api/catalog/gpus", "/nowhere", "/api/estimate"])
def test_every_answer_carries_the_policy_of_the_page(server: Any, path: str) -> None:
    headers = server.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_a_form_could_send_is_refused(server: Any, kind: str | None) -> None:
    headers = {"content-type": kind} if kind else {}
    reply = httpx.post(f"{server.url}/api/estimate", content=b'{"model": "gpt2-xl"}', headers=headers)
    assert reply.status_code == 415


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/%2e%2e/etc/passwd", "/static/../app.py", "//etc/passwd", "/.git"]
)
def test_no_file_but_the_pages_own_can_be_had(server: Any, path: str) -> None:
    said = raw(
        server, f"GET {path} HTTP/1.1\r\nHost: {urlsplit(server.url).netloc}\r\nConnection: close\r\n\r\n".encode()
    )
    assert b" 404 " in said.splitlines()[0]


def test_a_body_of_more_than_a_megabyte_is_refused_before_it_is_read(server: Any) -> None:
    body = {"config": {"model_type": "llama", "note": "x" * 2_000_000}}
    reply = server.post("/api/estimate", body)
    assert reply.status_code == 413
    assert "1048576 bytes" in reply.json()["error"]["message"]
    head = f"POST /api/estimate HTTP/1.1\r\nHost: {urlsplit(server.url).netloc}\r\nContent-Type: application/json\r\n"
    said = raw(server, head.encode() + b"Content-Length: 99999999999999999999\r\n\r\n{")
    assert b" 413 " in said.splitlines()[0] or b" 400 " in said.splitlines()[0]


def test_a_body_in_pieces_is_counted_too(server: Any) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 50_000

    with contextlib.suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        reply = httpx.post(f"{server.url}/api/estimate", content=pieces(), headers={"content-type": "application/json"})
        assert reply.status_code == 413
    assert server.get("/health").status_code == 200


def test_a_slow_body_and_a_slow_head_are_given_up(start_with: Callable[..., Any]) -> None:
    server = start_with(upload_s=0.6)
    head = f"POST /api/estimate HTTP/1.1\r\nHost: {urlsplit(server.url).netloc}\r\nContent-Type: application/json\r\n"
    said = raw(server, head.encode() + b"Content-Length: 50\r\n\r\n{")
    assert b" 408 " in said.splitlines()[0]
    assert b"must arrive within 0.6 s" in said
    assert raw(server, b"GET / HTTP/1.1\r\nHos") == b""
    assert raw(server, b"") == b""


@pytest.mark.parametrize(
    "data",
    [b"\x00\xff" * 400, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"A: " + b"x" * 100_000],
)
def test_what_is_no_http_is_answered_400_or_dropped(server: Any, data: bytes) -> None:
    said = raw(server, data)
    assert said == b"" or said.splitlines()[0].split()[1] in (b"400", b"403")
    assert server.get("/health").status_code == 200


def test_other_addresses_ask_for_a_token_and_say_so(start: Callable[..., Any]) -> None:
    server = start("--host", "0.0.0.0")
    assert "can be reached from other machines" in server.said
    token = server.said.split("token=")[1].split()[0]
    port = urlsplit(server.url).port
    base = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{base}/health").status_code == 200
    assert httpx.get(f"{base}/").status_code == 401
    assert httpx.post(f"{base}/api/estimate", json=ASK, headers={"authorization": "Bearer wrong"}).status_code == 401
    allowed = {"authorization": f"Bearer {token}"}
    assert httpx.post(f"{base}/api/estimate", json=ASK, headers=allowed, timeout=60).status_code == 200
    with httpx.Client(base_url=base) as client:
        first = client.get(f"/?token={token}")
        assert first.status_code == 200
        assert "HttpOnly" in first.headers["set-cookie"]
        assert "SameSite=Strict" in first.headers["set-cookie"]
        assert client.get("/app.js").status_code == 200
    assert httpx.get(f"{base}/", headers={"host": f"rebound.example:{port}"}).status_code == 403


def test_a_name_is_answered_when_it_was_allowed(start: Callable[..., Any]) -> None:
    server = start("--allow-host", "box.example")
    port = urlsplit(server.url).port
    assert server.get("/health", headers={"host": f"box.example:{port}"}).status_code == 200
    assert server.get("/health", headers={"host": f"other.example:{port}"}).status_code == 403


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its children (Linux)."""
    total = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(folder.name) == pid or int(stat[1]) == pid:
                total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/shape", {"model": "llama-2-70b"}),
        ("/api/plan", {"model": "gpt2", "num_devices": 8, "global_batch_size": 16, "fix": {"pp": 1, "cp": 1}}),
    ],
)
def test_two_hundred_at_once_are_answered_or_refused_politely_in_little_memory(
    start: Callable[..., Any], path: str, body: dict[str, Any]
) -> None:
    server = start()
    ask = [{**body, "seq_len": 512 + 2 * i} for i in range(200)]

    async def all_at_once() -> list[int]:
        limits = httpx.Limits(max_connections=250)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=300.0) as client:

            async def one(each: dict[str, Any]) -> int:
                reply = await client.post(path, json=each)
                assert reply.status_code != 429 or reply.headers["retry-after"] == "1"
                return reply.status_code

            return await asyncio.gather(*(one(each) for each in ask))

    codes = asyncio.run(all_at_once())
    assert set(codes) <= {200, 429}
    assert codes.count(200) >= 24  # as many as may wait
    if Path("/proc/self/statm").exists():
        assert memory_of(server.pid) < 2**30
    assert server.get("/health").status_code == 200
    assert server.post("/api/estimate", ASK).status_code == 200


@pytest.mark.slow
def test_who_finds_the_queue_full_is_asked_to_come_again_at_once(start_with: Callable[..., Any]) -> None:
    server = start_with(waiting=1, slow_s=6.0)
    body = {"model": "llama-3.1-405b", "num_devices": 4096, "cluster": "dgx-h100", "global_batch_size": 4096}

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            return await asyncio.gather(*(client.post("/api/plan", json={**body, "top": n}) for n in range(1, 9)))

    replies = asyncio.run(together())
    busy = [reply for reply in replies if reply.status_code == 429]
    assert len(busy) == 6  # one at work, one waiting
    assert {reply.headers["retry-after"] for reply in busy} == {"1"}
    assert "the server is busy" in busy[0].json()["error"]["message"]


@pytest.mark.slow
def test_a_search_that_takes_too_long_is_ended_with_a_sentence_and_the_next_is_answered(
    start_with: Callable[..., Any],
) -> None:
    server = start_with(slow_s=0.3)
    body = {"model": "llama-3.1-405b", "num_devices": 4096, "cluster": "dgx-h100", "global_batch_size": 4096}
    reply = server.post("/api/plan", body)
    assert reply.status_code == 422
    assert "takes longer than the limit of 0.3 s" in reply.json()["error"]["message"]
    assert server.post("/api/estimate", ASK).status_code == 200


@pytest.mark.slow
def test_a_worker_that_asks_for_too_much_memory_answers_with_a_sentence(start_with: Callable[..., Any]) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("memory of a process is limited on Linux alone")
    server = start_with(worker_bytes=4 * 2**20)
    body = {"model": "llama-3.1-405b", "num_devices": 4096, "cluster": "dgx-h100", "global_batch_size": 4096}
    reply = server.post("/api/plan", body)
    assert reply.status_code == 422
    assert "memory" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/advise", {**ASK, "top": 10**9}),
        ("/api/sweep", {**ASK, "field": "vocab_size", "values": list(range(1, 6000))}),
        ("/api/sweep", {**ASK, "field": "vocab_size", "values": []}),
        ("/api/sweep", {**ASK, "field": "vocab_size", "values": [0]}),
        ("/api/sweep", {**ASK, "field": "nothing"}),
        ("/api/compare", {**ASK, "shapes": [{}] * 13}),
        ("/api/compare", {**ASK, "shapes": []}),
        ("/api/compare", {**ASK, "shapes": [{"set": 5}]}),
        ("/api/compare", {**ASK, "shapes": [{"sett": {}}]}),
        ("/api/compare", {**ASK, "shapes": [{}], "gpus": ["h100"] * 9}),
        ("/api/plan", {**ASK, "global_batch_size": 64, "num_devices": [8] * 9}),
        ("/api/plan", {**ASK, "global_batch_size": 64, "num_devices": 8, "top": 10**6}),
        ("/api/schedule", {"instance": {}, "time_limit": 1e9}),
        ("/api/place", {"instance": {}}),
        ("/api/place", {}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_work_is_limited_before_it_begins(server: Any, path: str, body: dict[str, Any]) -> None:
    reply = server.post(path, body)
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["message"]


def test_unknown_addresses_and_methods_are_sentences(server: Any) -> None:
    assert server.get("/api/nothing").status_code == 404
    assert "openapi.json" in server.get("/api/nothing").json()["error"]["message"]
    reply = server.get("/api/estimate")
    assert reply.status_code == 405
    assert reply.headers["allow"] == "POST"


def test_an_interrupt_ends_it_with_130_and_its_workers_with_it(start: Callable[..., Any]) -> None:
    command = [sys.executable, "-c", "from sartor.cli import main; main()", "page", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "open http" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--port", "70000"], "--port=70000"),
        (["--port", "x"], "--port"),
        (["--host", "no.such.host.invalid"], "--host=no.such.host.invalid"),
        (["--study", "nothing.db"], "--study=nothing.db"),
        (["--time-limit", "0"], "--time-limit=0"),
        (["--workers", "0"], "--workers=0"),
    ],
)
def test_words_that_cannot_be_are_refused_at_the_start(words: list[str], says: str) -> None:
    command = [sys.executable, "-c", "from sartor.cli import main; main()", "page", *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 2
    assert says in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_in_use_is_a_sentence(server: Any) -> None:
    port = str(urlsplit(server.url).port)
    command = [sys.executable, "-c", "from sartor.cli import main; main()", "page", "--port", port]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 2
    assert f"--port={port}: cannot be listened on" in ran.stderr


@pytest.mark.parametrize(
    ("host", "parts"),
    [
        ("localhost", ("localhost", None)),
        ("LOCALHOST:80", ("localhost", 80)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", None)),
        ("a.b.", ("a.b", None)),
        ("a:b", ("", -1)),
        ("a b", ("", -1)),
        ("", ("", -1)),
        ("user@host", ("", -1)),
    ],
)
def test_a_host_header_is_split(host: str, parts: tuple[str, int | None]) -> None:
    assert split_host(host) == parts


def test_loopback_is_known() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "example.org", ""))


@pytest.mark.parametrize(("ended", "status"), [(1, 200), (2, 422)])
def test_a_request_whose_worker_ended_is_given_to_another_once(
    monkeypatch: pytest.MonkeyPatch, ended: int, status: int
) -> None:
    tries = []

    async def in_a_process(*_: object) -> Reply:
        tries.append(1)
        if len(tries) <= ended:
            raise anyio.BrokenWorkerProcess
        return Reply(body=b"{}")

    async def asked() -> Reply | None:
        lane = work.Lane(work.LaneLimits(workers=1, waiting=1, seconds=5.0), WorkerLimits())
        return await lane.do({"route": "shape"}, b"{}", asyncio.Event().wait())  # type: ignore[arg-type]

    monkeypatch.setattr(work, "in_a_process", in_a_process)
    reply = asyncio.run(asked())
    assert reply is not None
    assert (reply.status, len(tries)) == (status, 2)
    assert status == 200 or b"needs more memory than a worker has" in reply.body
