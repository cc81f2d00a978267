"""``torchtap serve``: the pages of runs in a browser, from this machine alone.

A request chooses among what is there by a number, and no path of it is ever opened. It must have
the token that the address has, and a ``Host`` of this server: a page from elsewhere knows neither,
also where its name was made to lead here.
"""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torchtap.core.errors import InputError, TorchtapError
from torchtap.core.text import clean
from torchtap.core.version import __version__
from torchtap.runs.open_run import open_run
from torchtap.show.live.found_runs import is_run, runs_under
from torchtap.show.live.run_state import RunState
from torchtap.show.live.runs_page import ListedRun, policy_of_list, runs_page
from torchtap.show.live.served_run import NOTHING_ELSE, Body, ServedRun, body_of

DEFAULT_PORT = 8765
_RESCAN = 2.0
"""Seconds after which a folder is looked through again."""
_RUN = re.compile(r"/run/(0|[1-9][0-9]{0,5})/(data\.json)?")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Refused(Exception):
    """A request that is not answered.

    Args:
        status: of the answer.
        why: its text.
    """

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Pages:
    """The runs that are served: one, or those under a folder.

    Args:
        path: of either.
        token: which a request must have.

    Attributes:
        path: of either.
        token: of the requests.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.token = token
        self.path = path
        self._lock = threading.Lock()
        self._only = ServedRun(path) if is_run(path) else None
        self._runs: dict[Path, ServedRun] = {}
        self._due = 0.0

    def answer(self, path: str) -> Body:
        """Return the body for the path of a request.

        Raises:
            Refused: there is no such page.
        """
        if self._only is not None:
            pages = {"/": self._only.page, "/data.json": self._only.data}
            if path in pages:
                return pages[path]()
        elif path == "/":
            text = runs_page(str(self.path), self._listed(), self.token)
            return body_of(text, "text/html", policy_of_list())
        elif (found := _RUN.fullmatch(path)) is not None:
            runs = list(self._found().values())
            if int(found[1]) < len(runs):
                one = runs[int(found[1])]
                return one.page() if found[2] is None else one.data()
        raise Refused(HTTPStatus.NOT_FOUND, "There is no such page.")

    def _found(self) -> dict[Path, ServedRun]:
        """The runs; a run keeps its number as long as the server goes on."""
        with self._lock:
            if time.monotonic() >= self._due:
                for path in runs_under(self.path):
                    self._runs.setdefault(path, ServedRun(path))
                self._due = time.monotonic() + _RESCAN
            return dict(self._runs)

    def _listed(self) -> list[ListedRun]:
        listed = []
        for number, (path, one) in enumerate(self._found().items()):
            state: RunState | None
            try:
                state = one.state
            except (OSError, TorchtapError):
                state = None
            listed.append(ListedRun(number, str(path.relative_to(self.path)), state))
        return sorted(listed, key=lambda one: one.name)


class Server(ThreadingHTTPServer):
    """Serves pages; reads runs, and writes nothing.

    Args:
        pages: what is served.
        host: which address of this machine it listens to.
        port: 0 for any that is free.

    Raises:
        InputError: the port is taken, or there is no such host.
    """

    daemon_threads = True

    def __init__(self, pages: Pages, host: str, port: int) -> None:
        self.pages = pages
        self.host = host
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            self.address_family = addresses[0][0]
            super().__init__((host, port), _Handler)
        except socket.gaierror as error:
            raise InputError(
                f"--host {host!r} is no address of this machine ({error.strerror}). Leave it out "
                f"for 127.0.0.1, which no other machine reaches."
            ) from error
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"Nothing can listen to port {port} of {host}: {said}. Give another with --port, "
                f"or --port 0 for any that is free."
            ) from error

    def server_bind(self) -> None:
        """Bind without asking who this machine is, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.host, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""

    @property
    def address(self) -> str:
        """Return the address to open, with its token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_port}/?token={self.pages.token}"

    def is_own(self, host: str) -> bool:
        """Return whether a ``Host`` header names this server."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        names = {"localhost", "127.0.0.1", "[::1]", own.lower()}
        allowed = {f"{name}:{self.server_port}" for name in names}
        return host.lower() in (allowed | names if self.server_port == 80 else allowed)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = f"torchtap/{__version__}"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_GET

    def _refuse_method(self) -> None:
        self._say(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are answered.")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse_method

    def _answer(self) -> None:
        try:
            self._check_host()
            body = self.server.pages.answer(self._checked_path())
        except Refused as refused:
            self._say(refused.status, refused.why)
        except (TorchtapError, OSError) as error:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, f"The run cannot be read: {error}")
        else:
            self._send(body)

    def _check_host(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.is_own(hosts[0].strip()):
            raise Refused(HTTPStatus.FORBIDDEN, "This server is asked under its own name only.")

    def _checked_path(self) -> str:
        """Return the path of the request, once its token is right."""
        if not self.path.startswith("/"):
            raise Refused(HTTPStatus.BAD_REQUEST, "A request names a path.")
        try:
            split = urlsplit(self.path)
            given = parse_qs(split.query, max_num_fields=8).get("token", [])
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "The address means nothing.") from None
        own = self.server.pages.token.encode()
        is_right = hmac.compare_digest("".join(given).encode("utf-8", "replace"), own)
        if len(given) != 1 or not is_right:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "The token is missing or wrong: open the address that torchtap serve printed.",
            )
        return self.path.partition("?")[0]

    def _send(self, body: Body) -> None:
        if self.headers.get("If-None-Match") == body.tag:
            self._begin(HTTPStatus.NOT_MODIFIED, body.policy, {"ETag": body.tag})
            self.end_headers()
            return
        content, more = body.content, {"ETag": body.tag, "Vary": "Accept-Encoding"}
        if body.zipped is not None and _takes_gzip(self.headers.get("Accept-Encoding", "")):
            content, more["Content-Encoding"] = body.zipped, "gzip"
        self._write(HTTPStatus.OK, content, body.kind, body.policy, more)

    def _say(self, status: HTTPStatus, why: str) -> None:
        """Answer with one line of plain text, and end the connection: it may send more."""
        self.close_connection = True
        more = {"Connection": "close"}
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            more["Allow"] = "GET, HEAD"
        self._write(status, f"{clean(why)}\n".encode(), "text/plain; charset=utf-8", "", more)

    def _write(
        self, status: HTTPStatus, content: bytes, kind: str, policy: str, more: dict[str, str]
    ) -> None:
        self._begin(status, policy, more)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _begin(self, status: HTTPStatus, policy: str, more: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Security-Policy", policy or NOTHING_ELSE)
        for name, value in {**_HEADERS, **more}.items():
            self.send_header(name, value)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request that is understood, without repeating any of it."""
        status = HTTPStatus(code)
        self._say(status, f"{status.phrase}.")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: an address has the token in it."""


def _takes_gzip(accepted: str) -> bool:
    for one in accepted.split(","):
        name, _, quality = one.strip().partition(";")
        if name.strip().lower() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def make_server(path: Path, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> Server:
    """Make the server of a run, or of the runs under a folder; ``serve_forever`` runs it.

    Raises:
        FileNotFoundError: there is nothing at the path.
        RunError: it is a file, and no run.
        InputError: it cannot listen there.
    """
    path.stat()
    if not path.is_dir():
        open_run(path)
    return Server(Pages(path, secrets.token_urlsafe(24)), host, port)
