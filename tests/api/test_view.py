"""The graphs are drawn side by side in a real browser, and nobody else can read them or is told of them."""

from __future__ import annotations

import http.client
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from tests.bundle.making import bundle
from tests.engines.making import layer
from tests.report.test_browser import BROWSER, FLAGS

from vengine.api import graph_server
from vengine.api.graph_server import GraphServer, Picture
from vengine.api.view import pictures, served
from vengine.errors import BundleError, EngineMissing, UsageError

INDEX = (
    '<html><head><meta name="version" content="9.3.3"><meta name="date" content="2020-01-01 00:00:00"></head></html>'
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for Netron's, with a file beside it that must not be served."""
    folder = tmp_path / "netron"
    folder.mkdir()
    (folder / "index.html").write_text(INDEX)
    (folder / "index.js").write_text("// theirs")
    (folder / "server.py").write_text("secret = 1")
    (tmp_path / "secret.js").write_text("secret")
    monkeypatch.setattr(graph_server, "netron_files", lambda: folder)
    monkeypatch.setattr("vengine.api.view.netron_files", lambda: folder)
    return folder


@contextmanager
def answering(server: GraphServer) -> Iterator[GraphServer]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()


def get(server: GraphServer, path: str, host: str = "", method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def test_only_the_graphs_and_netrons_files_are_served(tmp_path: Path, files: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"graph")
    (tmp_path / "m.onnx.data").write_bytes(b"weights")
    (tmp_path / "other.onnx").write_bytes(b"not yours")
    picture = Picture(title="<b>m</b>", path=model, beside=("m.onnx.data",))
    with GraphServer([picture]) as server, answering(server):
        key = server.key
        for path, status in {
            f"/{key}/": 200,
            f"/{key}/0/": 200,
            f"/{key}/0/index.js": 200,
            f"/{key}/0/data/m.onnx": 200,
            f"/{key}/0/data/m.onnx.data": 200,
            f"/{key}/0/data/other.onnx": 404,
            f"/{key}/0/data/../m.onnx": 404,
            f"/{key}/0/data/..%2fsecret.js": 404,
            f"/{key}/0/server.py": 404,
            f"/{key}/0/../secret.js": 404,
            f"/{key}/0/..%2fsecret.js": 404,
            f"/{key}/1/": 404,
            f"/{key}/-1/": 404,
            f"/{key}": 404,
            "/": 404,
            "/0/data/m.onnx": 404,
            "/favicon.ico": 404,
        }.items():
            assert get(server, path)[0] == status, path
        assert get(server, f"/{key}/0/data/m.onnx")[1] == b"graph"
        assert get(server, f"/{key}/0/data/m.onnx", method="HEAD")[1] == b""
        assert get(server, f"/{key}/", host="evil.example")[0] == 404  # a name bent to this machine
        page = get(server, f"/{key}/")[1].decode()
        assert "<b>m</b>" not in page
        assert server.server_address[0] == "127.0.0.1"


def test_netron_is_told_to_send_nothing(tmp_path: Path, files: Path) -> None:
    with GraphServer([Picture(title="m", path=tmp_path / 'a "b".onnx')]) as server, answering(server):
        _, page, headers = get(server, f"/{server.key}/0/")
    text = page.decode()
    assert '<meta name="version" content="0.0.0">' in text  # its own sign for "send nothing"
    assert "9.3.3" not in text
    assert "2020-01-01" not in text  # an old copy would insist on an update
    assert 'content="data/a%20%22b%22.onnx"' in text
    assert "default-src 'none'; connect-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Set-Cookie"].startswith("consent=1")


def test_what_is_shown(tmp_path: Path, files: Path) -> None:
    plain = layer(tmp_path / "m.onnx")

    def titles(target: Any, **more: Any) -> list[str]:
        folder = tmp_path / f"made{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        found = pictures(target, folder, variant=more.get("variant"), cache=tmp_path / "cache")
        assert all(p.path.is_file() for p in found)
        return [p.title for p in found]

    assert titles(plain) == ["m.onnx", "as ONNX Runtime runs it here"]
    (tmp_path / "m.xml").write_text("<net/>")
    assert titles(tmp_path / "m.xml") == ["m.xml"]
    with pytest.raises(BundleError, match="no graph"):
        titles(bundle(tmp_path).root)  # toys are JSON files
    with pytest.raises(UsageError, match="no bundle"):
        titles(plain, variant="onnxruntime fp32")


def test_a_port_that_is_taken(tmp_path: Path, files: Path) -> None:
    one = [Picture(title="m", path=tmp_path / "m.onnx")]
    with GraphServer(one) as server, pytest.raises(UsageError, match="can't be used"):
        GraphServer(one, server.server_address[1])


def test_without_netron_the_message_has_the_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vengine.api.graph_server.util.find_spec", lambda _: None)
    with pytest.raises(EngineMissing, match="netron is not installed") as caught, served(tmp_path / "m.onnx"):
        pass
    assert caught.value.next_step == "pip install 'vengine[view]'"


@pytest.mark.skipif(BROWSER is None or util.find_spec("netron") is None, reason="needs chromium and netron")
def test_a_browser_draws_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture is taken when the page is loaded, so a part of it lets the browser wait until Netron has drawn."""
    assert BROWSER
    page, found = graph_server._page, graph_server._Handler._found
    asked: list[str] = []

    def slow(self: Any, path: str) -> Any:
        asked.append(path)
        if path.endswith("/wait.png"):
            until = time.monotonic() + 20
            while sum("onnx-metadata.json" in p for p in asked) < 2 and time.monotonic() < until:
                time.sleep(0.1)
            time.sleep(1.5)
            return None
        return found(self, path)

    monkeypatch.setattr(
        graph_server, "_page", lambda p: page(p).replace("</main>", '</main><img alt="" src="wait.png">')
    )
    monkeypatch.setattr(graph_server._Handler, "_found", slow)
    shot = tmp_path / "shot.png"
    flags = [f for f in FLAGS if not f.startswith(("--virtual-time", "--dump"))]
    places = [f"--screenshot={shot}", f"--user-data-dir={tmp_path / 'p'}"]
    with served(layer(tmp_path / "m.onnx")) as server, answering(server):
        done = subprocess.run(
            [BROWSER, *flags, "--window-size=1000,600", *places, server.url],
            capture_output=True,
            text=True,
            timeout=90,
            check=True,
        )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line and "wait.png" not in line] == []
    assert sum(bool(re.search(r"/[01]/data/.*\.onnx$", p)) for p in asked) == 2
    from PIL import Image

    image = Image.open(shot).convert("L")
    for half in ((0, 60, 490, 560), (510, 60, 990, 560)):
        inked = sum(image.crop(half).histogram()[:100])
        assert 500 < inked < 60_000, "two small boxes, not Netron's title in large letters"
