"""``torchtap serve``: what it answers, and to whom."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from browser import Visit, chromium
from live_runs import train, training, wait_for

import torchtap as tt
from torchtap.cli.app import run as command
from torchtap.show.live.serve import Server, make_server


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    server = make_server(path, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server: Server, target: str = "/", *, method: str = "GET", **headers: str) -> Answer:
    """Ask with the token, unless the target has one; headers with ``_`` for ``-``."""
    if "token" not in target:
        target += ("&" if "?" in target else "?") + f"token={server.pages.token}"
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.putrequest(method, target, skip_host="Host" in named, skip_accept_encoding=True)
        for key, value in named.items():
            connection.putheader(key, value)
        connection.endheaders()
        found = connection.getresponse()
        return Answer(found.status, dict(found.getheaders()), found.read())
    finally:
        connection.close()


def raw(server: Server, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as one:
        one.sendall(text)
        one.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: one.recv(65536), b""))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("served") / "run"
    train(path, 5)
    (path.parent / "secret.txt").write_text("SECRET")
    with serving(path) as server:
        yield server


def test_the_page_and_its_data_are_those_of_the_run(served: Server) -> None:
    page, data = ask(served), ask(served, "/data.json")
    assert (page.status, data.status) == (200, 200)
    assert b'id="sites"' in page.body
    assert b"data-live" in page.body
    found = json.loads(data.body)
    assert set(found["sites"]) == {str(one) for one in tt.open(served.pages.path).sites}
    assert found["subtitle"].startswith("done: ")
    assert data.headers["Content-Type"] == "application/json; charset=utf-8"


def test_answers_carry_what_keeps_a_page_to_itself(served: Server) -> None:
    for target in ("/", "/data.json", "/nothing", "/?token=wrong"):
        headers = ask(served, target).headers
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "Access-Control-Allow-Origin" not in headers
        assert "Python" not in headers["Server"]


def test_without_the_token_nothing_is_said(served: Server) -> None:
    right = served.pages.token
    for token in ("", "x", right[:-1], right + "x", right.swapcase(), "%00", "é"):
        for target in ("/", "/data.json", "/nothing"):
            found = ask(served, f"{target}?token={token.replace('é', '%C3%A9')}")
            assert found.status == 403
            assert b"run" not in found.body.replace(b"torchtap serve printed", b"")
    assert ask(served, f"/?token={right}&token={right}").status == 403
    assert ask(served, "/?x=token").status == 403  # No token at all: `token` in it is none.


def test_a_name_that_is_made_to_lead_here_is_refused(served: Server) -> None:
    port = served.server_port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", f"LOCALHOST:{port}"):
        assert ask(served, Host=host).status == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        f"127.0.0.1.evil.example:{port}",
        f"localhost:{port + 1}",
        "localhost",
        "",
        f"127.0.0.1:{port}, evil.example",
        f"evil@127.0.0.1:{port}",
    ):
        assert ask(served, Host=host).status == 403
    token = served.pages.token.encode()
    assert b" 403 " in raw(served, b"GET /?token=" + token + b" HTTP/1.1\r\n\r\n").splitlines()[0]
    two = b" HTTP/1.1\r\nHost: localhost:%d\r\nHost: evil\r\n\r\n" % port
    assert b" 403 " in raw(served, b"GET /?token=" + token + two).splitlines()[0]


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/run/../../secret.txt",
        "/run/0/",
        "/run/0/data.json",
        "//evil.example/",
        "/data.json/",
        "/./",
        "/" + "a" * 5000,
        "/secret.txt",
        "/rank-00000/attempt-000/attempt.json",
        "/data.json%00",
        "/favicon.ico",
        "/;/data.json",
    ],
)
def test_no_path_of_a_request_is_opened(served: Server, target: str) -> None:
    found = ask(served, target)
    assert found.status == 404
    assert b"SECRET" not in found.body


def test_odd_requests_are_refused_and_the_server_goes_on(served: Server) -> None:
    port, token = served.server_port, served.pages.token
    host = f"Host: localhost:{port}\r\n".encode()
    absolute = f"GET http://localhost:{port}/?token={token} HTTP/1.1\r\n".encode() + host + b"\r\n"
    assert b" 400 " in raw(served, absolute).splitlines()[0]
    elsewhere = b"GET http://evil.example/ HTTP/1.1\r\n" + host + b"\r\n"
    assert b" 400 " in raw(served, elsewhere).splitlines()[0]
    assert b" 414 " in raw(served, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n").splitlines()[0]
    many = b"".join(b"X-%d: y\r\n" % n for n in range(200))
    assert b" 431 " in raw(served, b"GET / HTTP/1.1\r\n" + many + b"\r\n").splitlines()[0]
    assert b"Bad Request" in raw(served, b"\x16\x03\x01\x02\x00 \x00 x\r\n\r\n")
    assert b" 501 " in raw(served, b"BREW / HTTP/1.1\r\n" + host + b"\r\n").splitlines()[0]
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        found = ask(served, "/", method=method)
        assert (found.status, found.headers["Allow"]) == (405, "GET, HEAD")
    head = ask(served, "/", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) > 1000
    assert ask(served).status == 200


def test_what_is_long_is_zipped_and_what_is_known_is_not_sent_again(served: Server) -> None:
    plain, zipped = ask(served, "/data.json"), ask(served, "/data.json", Accept_Encoding="br, gzip")
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == plain.body
    assert "Content-Encoding" not in ask(served, "/", Accept_Encoding="gzip;q=0").headers
    again = ask(served, "/data.json", If_None_Match=plain.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert ask(served, "/data.json", If_None_Match='"other"').status == 200


def test_data_follow_the_run(tmp_path: Path) -> None:
    w = train(tmp_path / "run", 3, is_closed=False)
    w.sync()
    with serving(tmp_path / "run") as server:
        first = ask(server, "/data.json")
        assert json.loads(first.body)["runs"][0]["num_steps"] == 3
        with w:  # Closed, which writes the rest.
            pass
        end = time.monotonic() + 20
        while ask(server, "/data.json", If_None_Match=first.headers["ETag"]).status == 304:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert json.loads(ask(server, "/data.json").body)["subtitle"].startswith("done: ")


def test_the_runs_under_a_folder_are_one_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchtap.show.live.serve._RESCAN", 0.0)
    train(tmp_path / "b", 1)
    w = train(tmp_path / "<i>a", 2, is_closed=False)
    with serving(tmp_path) as server:
        page = ask(server)
        assert page.status == 200
        text = page.body.decode()
        assert "&lt;i&gt;a" in text
        assert "<i>a" not in text
        assert re.findall(r"<td>(live|done)</td>", text) == ["live", "done"]
        links = re.findall(r'href="([^"]*)"', text)
        assert len(links) == 2
        for link in links:
            own = ask(server, "/" + link)
            assert own.status == 200
            assert b'id="sites"' in own.body
            assert ask(server, "/" + link.replace("/?", "/data.json?")).status == 200
        for target in ("/run/2/", "/run/-1/", "/run/00/", "/run/0", "/run/b/", "/data.json"):
            assert ask(server, target).status == 404
        train(tmp_path / "new", 1)
        assert ask(server, "/run/2/").status == 200  # The numbers of the others stay.
        w.close()
        (tmp_path / "new" / "run.json").write_text("{")
    (tmp_path / "empty").mkdir()
    with serving(tmp_path / "empty") as server:
        assert b"There is no run here so far" in ask(server).body


def test_a_run_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    train(tmp_path / "run", 1)
    (tmp_path / "run" / "run.json").write_text("{")
    with serving(tmp_path / "run") as server:
        found = ask(server)
        assert found.status == 503
        assert b"is damaged" in found.body


def test_a_port_that_is_taken_is_an_error_with_a_way_out(
    served: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", 1)
    port = str(served.server_port)
    assert command(["serve", str(tmp_path / "run"), "--port", port]) == 2
    assert "--port 0 for any that is free" in capsys.readouterr().err
    assert command(["serve", str(tmp_path / "run"), "--port", "70000"]) == 2
    assert command(["serve", str(tmp_path / "run"), "--host", "no.such.host.invalid"]) == 2
    assert command(["serve", str(tmp_path / "nothing")]) == 2
    (tmp_path / "no.safetensors").write_text("no run")
    assert command(["serve", str(tmp_path / "no.safetensors")]) == 2


# ---------------------------------------------------------------------- in processes of their own


@contextmanager
def served_by_command(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    program = [sys.executable, "-m", "torchtap", "serve", str(path), "--port", "0"]
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        program, text=True, env=environment, preexec_fn=_interruptible, **pipe
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def _interruptible() -> None:
    """A shell has its background ignore interrupts, and all that is started from there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)
    with served_by_command(tmp_path / "run") as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
        process.send_signal(signal.SIGINT)
        said, complaint = process.communicate(timeout=20)
        assert (process.returncode, said) == (0, "")
        assert complaint == "torchtap: ended\n"


@pytest.mark.slow
def test_the_page_updates_itself_while_the_training_goes_on(tmp_path: Path) -> None:
    with ExitStack() as stack:
        wait_for(stack.enter_context(training(tmp_path / "run", bad=600)), 50)
        _, address = stack.enter_context(served_by_command(tmp_path / "run"))
        browser = stack.enter_context(chromium())
        visit = Visit(browser, address)
        steps = "() => document.querySelector('header p').textContent.match(/[\\d,]+ steps/)[0]"
        first = visit.page.evaluate(steps)
        visit.page.click("#tab-table")
        visit.page.fill("#filter", "*@Tanh:output")
        assert sorted(visit.sites()) == [f"{n}.act:output" for n in range(1, 5)]
        ends = time.monotonic() + 30
        while visit.page.evaluate(steps) == first:  # What Playwright waits by, the page forbids.
            assert time.monotonic() < ends
            visit.page.wait_for_timeout(100)
        assert sorted(visit.sites()) == [f"{n}.act:output" for n in range(1, 5)]
        assert "live: " in visit.page.text_content("header p")
        own = address.partition("?")[0]
        assert all(one.startswith(own) for one in visit.requests)
        visit.close()
