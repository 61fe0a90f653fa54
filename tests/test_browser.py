"""What a person sees: a notebook in a real JupyterLab, in a real browser, its slider moved by keyboard.

Skips itself where there is no Chromium (``CHROMIUM`` names one). ``MLA_LAB_BROWSER_NOTEBOOK`` names another notebook.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page, expect, sync_playwright

ROOT = Path(__file__).parent.parent
NOTEBOOK = Path(os.environ.get("MLA_LAB_BROWSER_NOTEBOOK", ROOT / "notebooks" / "01_kv_cache_footprint.ipynb"))
NAMES = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
# Chromium asks for its own updates; a sandbox needs rights that a container and root do not have.
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
]
ARGS += ["--disable-background-networking", "--disable-component-update"]
SECOND = 1000

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install one, or name it in CHROMIUM"),
    pytest.mark.skipif(not NOTEBOOK.exists(), reason=f"{NOTEBOOK.name} does not exist yet"),
]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def end(process: subprocess.Popen) -> None:
    """End the server and, through it, its kernels: it asks once, then goes."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(5)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab on loopback with a token and settings of its own: its address, and the token."""
    home, token, port = tmp_path_factory.mktemp("lab"), secrets.token_hex(16), free_port()
    shutil.copytree(NOTEBOOK.parent, home / "root", ignore=shutil.ignore_patterns(".*"))
    settings = {
        "apputils-extension/notification": '{"fetchNews": "false", "checkForUpdates": false}',  # asks nothing at start
        "notebook-extension/tracker": '{"windowingMode": "none"}',  # cells out of view stay in the page
    }
    for name, text in settings.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    folders = [
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "JUPYTERLAB_WORKSPACES_DIR",
        "IPYTHONDIR",
    ]
    env = {**os.environ, **{name: str(home / name.lower()) for name in folders}}
    env["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))  # installed or not
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--IdentityProvider.token={token}"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    command += [
        f"--ServerApp.root_dir={home / 'root'}",
        "--LabApp.news_url=None",
        "--LabApp.extension_manager=readonly",
    ]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    url, said = f"http://127.0.0.1:{port}", home / "lab.log"
    with said.open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_for(f"{url}/api?token={token}", process, said)
            yield url, token
        finally:
            end(process)


def wait_for(address: str, process: subprocess.Popen, said: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1):
            return
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{said.read_text()}")


@pytest.fixture
def page(lab):
    """The notebook, open and its kernel ready; whatever the page asks of another host fails the test."""
    url, token = lab
    here = (url, url.replace("http", "ws", 1), "data:", "blob:", "about:")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        outside: list[str] = []
        page.on("request", lambda request: outside.extend([request.url] * (not request.url.startswith(here))))
        page.goto(f"{url}/lab/tree/{NOTEBOOK.name}?token={token}&reset", wait_until="domcontentloaded")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60 * SECOND)
        # "Run All" before the kernel is connected is dropped without a word; the status bar says when it is
        idle = page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle$"))
        expect(idle).to_be_visible(timeout=60 * SECOND)
        yield page
        browser.close()
    assert not outside, f"requests to other hosts: {outside}"


def run_all(page: Page) -> None:
    """Run every cell and wait until each has its number; a cell that must raise does not stop the others."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    prompts = page.locator(".jp-Notebook .jp-CodeCell .jp-InputArea-prompt")
    last = prompts.nth(prompts.count() - 1)
    expect(last).to_have_text(re.compile(r"\[\d+\]:"), timeout=120 * SECOND)


def shown(output) -> tuple[str, str]:
    """The text and the picture beside a slider."""
    text = " ".join(output.locator(".widget-html-content").all_inner_texts())
    return text, output.locator("img.widget-image").first.get_attribute("src") or ""


def test_a_slider_changes_text_and_picture(page):
    run_all(page)
    slider = page.locator(".jp-OutputArea-output").get_by_role("slider").first
    slider.wait_for(timeout=20 * SECOND)
    output = page.locator(".jp-OutputArea-output").filter(has=page.get_by_role("slider")).first
    image = output.locator("img.widget-image").first
    expect(image).to_have_attribute("src", re.compile("^blob:|^data:"), timeout=20 * SECOND)
    text, picture = shown(output)
    assert re.search(r"\d", text), f"no number beside the slider: {text!r}"
    slider.focus()
    # a slider may stand at either end
    before = slider.get_attribute("aria-valuenow")
    page.keyboard.press("ArrowRight")
    if slider.get_attribute("aria-valuenow") == before:
        page.keyboard.press("ArrowLeft")
    new_text, new_picture, deadline = text, picture, time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(Error):  # the picture is being replaced
            new_text, new_picture = shown(output)
            if new_text != text and new_picture != picture:
                break
        page.wait_for_timeout(50)
    assert new_text != text, f"the slider moved and the text stayed {text!r}"
    assert new_picture != picture, "the slider moved and the picture stayed"
    assert re.search(r"\d", new_text)
