"""A JupyterLab and a Voila on loopback, and a headless Chromium to look at them with.

``CHROMIUM`` names the browser. Where there is none, every test that imports `needs_chromium` skips itself.
"""
from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
NAMES = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install one, or name it in CHROMIUM")
# A sandbox needs rights that a container and root do not have; without the rest Chromium asks for its own updates.
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
        "--disable-sync", "--disable-background-networking", "--disable-component-update"]
SECOND = 1000
SETTINGS = {
    "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',  # asks nothing at start
    "notebook-extension/tracker": '{"windowingMode": "none"}',  # cells out of view stay in the page
    "docmanager-extension/plugin": '{"autosave": false}',
}
LAB = ["--expose-app-in-browser", "--LabApp.news_url=None", "--LabApp.extension_manager=readonly",
       "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]


# --- servers ----------------------------------------------------------------------------------------------------------

def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _environment(home: Path) -> dict[str, str]:
    """Settings, caches and kernels of the server's own: nothing of the person who runs the tests is read or changed."""
    for name, text in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    own = {name: str(home / name.lower()) for name in (
        "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")}
    own["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    own["JUPYTER_PATH"] = str(ROOT / "tools" / "app")  # Voila's page without its icon font from elsewhere
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # installed or not
    return {**os.environ, **own}


def _end(process: subprocess.Popen) -> None:
    """End a server and, through it, its kernels: it asks once, then goes."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


def _answers(address: str) -> bool:
    """Whether somebody is there, whatever the answer."""
    try:
        with urllib.request.urlopen(address, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def _served(command: list[str], home: Path, address: str) -> Iterator[None]:
    """A server, from the moment that it answers at ``address``."""
    said = home / "server.log"
    with said.open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", *command], env=_environment(home), stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            deadline = time.monotonic() + 60
            while not _answers(address):
                if time.monotonic() > deadline or process.poll() is not None:
                    pytest.fail(f"{command[0]} did not start:\n{said.read_text()[-4000:]}")
                time.sleep(0.1)
            yield
        finally:
            _end(process)


@contextlib.contextmanager
def lab_server(home: Path, notebooks: Path = NOTEBOOKS) -> Iterator[tuple[str, str]]:
    """A JupyterLab over a copy of ``notebooks``: its address, and that of its page with the token."""
    port, token = _free_port(), secrets.token_hex(16)
    shutil.copytree(notebooks, home / "root", ignore=shutil.ignore_patterns(".*"))
    command = ["jupyterlab", "--no-browser", "--allow-root", f"--IdentityProvider.token={token}", *LAB]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    url = f"http://127.0.0.1:{port}"
    with _served([*command, f"--ServerApp.root_dir={home / 'root'}"], home, f"{url}/api?token={token}"):
        yield url, f"{url}/lab?token={token}&reset"


@contextlib.contextmanager
def voila_server(home: Path, notebook: Path) -> Iterator[str]:
    """Voila serving one notebook: its address."""
    port = _free_port()
    command = ["voila", str(notebook), "--template=offline", "--no-browser", "--Voila.ip=127.0.0.1", f"--port={port}"]
    with _served([*command, "--Voila.port_retries=0"], home, f"http://127.0.0.1:{port}/voila/"):
        yield f"http://127.0.0.1:{port}"


# --- the browser ------------------------------------------------------------------------------------------------------

@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium. Playwright allows one of these at a time."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def page_of(browser: Browser, url: str) -> Iterator[Page]:
    """An empty page; that it asked nothing of another host than ``url`` is asserted where it is left."""
    here = (url, url.replace("http", "ws", 1), "data:", "blob:", "about:")
    outside: list[str] = []

    def note(asked) -> None:
        if not asked.url.startswith(here):
            outside.append(asked.url)

    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    context.on("request", note)
    page = context.new_page()
    page.on("websocket", note)
    page.set_default_timeout(120 * SECOND)
    yield page
    context.close()
    assert not outside, f"requests to other hosts: {outside}"


def press(page: Page, handle: Locator) -> str:
    """Move a slider by an arrow key: right, or left from its right end. Returns the key that undoes it."""
    value, high = (float(handle.get_attribute(name)) for name in ("aria-valuenow", "aria-valuemax"))
    key, back = ("ArrowRight", "ArrowLeft") if value < high else ("ArrowLeft", "ArrowRight")
    handle.focus()
    page.keyboard.press(key)
    return back


def until(page: Page, true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until ``true()``, or for so many seconds; the caller asserts."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not true():
        page.wait_for_timeout(30)


def settled(page: Page, seen: Callable[[], object]) -> None:
    """Wait until what is seen has stayed for half a second: what cells did to a widget reaches the page after them."""
    last, since = seen(), time.monotonic()
    deadline = since + 20
    while time.monotonic() < min(since + 0.5, deadline):
        page.wait_for_timeout(50)
        now = seen()
        if now != last:
            last, since = now, time.monotonic()
