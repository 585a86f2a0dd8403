"""Netron's pages for some graphs side by side, on this machine alone: nothing is fetched from anywhere else.

Netron's own server would let its page ask an address service where the user is, and tell an analytics service what was
opened. Here its files are served under a content security policy that lets a page talk to this server only, it is told
that it is no released version (which is how Netron itself decides to send nothing), and it finds its consent given.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from vengine.errors import EngineMissing, UsageError

LOOPBACK = "127.0.0.1"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".png": "image/png",
    ".ico": "image/x-icon",
}
_POLICY = (
    "default-src 'none'; connect-src 'self'; script-src 'self'; worker-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
_STYLE = """
body { margin: 0; font: 15px/1.4 system-ui, sans-serif; background: #f4f6f9; color: #141a22; height: 100vh;
  display: flex; flex-direction: column; }
main { flex: 1; display: flex; gap: 6px; min-height: 0; }
section { flex: 1; display: flex; flex-direction: column; min-width: 0; }
h1 { font-size: 15px; margin: 0; padding: 8px 12px; font-weight: 600; overflow: hidden; text-overflow: ellipsis;
  white-space: nowrap; }
iframe { flex: 1; border: 0; background: #fff; }
@media (max-width: 860px) { main { flex-direction: column; } }
@media (prefers-color-scheme: dark) { body { background: #0e1217; color: #edf1f6; } }
"""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One graph to be drawn."""

    title: str
    path: Path  # the file that Netron opens; what lies beside it under the names in `beside` may be read too
    beside: tuple[str, ...] = ()


class GraphServer(ThreadingHTTPServer):
    """Serves the pictures until it is closed.

    Args:
        pictures: left to right; at least one.
        port: 0 takes a free one.

    Raises:
        EngineMissing: Netron isn't installed.
        UsageError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, pictures: Sequence[Picture], port: int = 0) -> None:
        self.pictures = tuple(pictures)
        self.netron = netron_files()
        # Other pages in the same browser must not be able to guess where the models lie.
        self.key = secrets.token_urlsafe(12)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} can't be used: {(error.strerror or 'it is taken').lower()}",
                next_step="choose another one with --port, or leave it out and a free one is taken",
            ) from error

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/{self.key}/"


def netron_files() -> Path:
    """The folder of Netron's own files.

    Raises:
        EngineMissing: it isn't installed.
    """
    found = util.find_spec("netron")
    if found is None or not found.submodule_search_locations:
        raise EngineMissing("netron is not installed, which draws graphs", next_step="pip install 'vengine[view]'")
    return Path(next(iter(found.submodule_search_locations)))


class _Handler(BaseHTTPRequestHandler):
    server: GraphServer

    def do_GET(self) -> None:
        found = self._found(unquote(urlsplit(self.path).path))
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content, kind = found
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Set-Cookie", "consent=1; Path=/; SameSite=Strict")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""

    def _found(self, path: str) -> tuple[bytes, str] | None:
        """The content and its type: /KEY/ the page, /KEY/N/… Netron's files, /KEY/N/data/… a picture's."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        parts = path.split("/")[1:]
        if host not in (LOOPBACK, "localhost") or parts[:1] != [self.server.key] or len(parts) < 2:
            return None  # also what another site's name, bent to this machine, gets
        if parts[1:] == [""]:
            return _page(self.server.pictures).encode(), _TYPES[".html"]
        if not parts[1].isdecimal() or int(parts[1]) >= len(self.server.pictures) or len(parts) < 3:
            return None
        picture = self.server.pictures[int(parts[1])]
        if parts[2] == "data":
            return _data(picture, "/".join(parts[3:]))
        return self._netron(picture, parts[2] or "index.html") if len(parts) == 3 else None

    def _netron(self, picture: Picture, name: str) -> tuple[bytes, str] | None:
        path = self.server.netron / name
        if "/" in name or path.suffix not in _TYPES or not path.is_file():
            return None
        content = path.read_bytes()
        return (_told(content, picture) if name == "index.html" else content), _TYPES[path.suffix]


def _data(picture: Picture, name: str) -> tuple[bytes, str] | None:
    """A picture's own file, or one that belongs to it: no other name leads anywhere."""
    if name != picture.path.name and name not in picture.beside:
        return None
    path = picture.path.with_name(name)
    return (path.read_bytes(), "application/octet-stream") if path.is_file() else None


def _told(index: bytes, picture: Picture) -> bytes:
    """Netron's page, told what to open and to send nothing."""
    today = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    told = (
        '<meta name="type" content="Python">\n<meta name="version" content="0.0.0">\n'
        f'<meta name="date" content="{today}">\n'
        f'<meta name="file" content="data/{escape(quote(picture.path.name))}">\n'
        f'<meta name="identifier" content="{escape(picture.path.name)}">'
    )
    text = re.sub(r'<meta name="date" content="[^"]*">\n?', "", index.decode("utf-8"))
    return re.sub(r'<meta name="version" content="[^"]*">', lambda _: told, text).encode()


def _page(pictures: Sequence[Picture]) -> str:
    frames = "".join(
        f'<section><h1>{escape(p.title)}</h1><iframe src="{i}/" title="{escape(p.title)}"></iframe></section>'
        for i, p in enumerate(pictures)
    )
    title = escape(" | ".join(p.title for p in pictures))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"</head><body><main>{frames}</main></body></html>"
    )
