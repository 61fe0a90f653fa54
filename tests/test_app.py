"""The explorer as a page of its own: Voila, in a real browser, moved by keyboard."""
from __future__ import annotations

import re

import pytest
from browser import NOTEBOOKS, chromium, needs_chromium, page_of, press, until, voila_server

pytest.importorskip("voila")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    """The page, at the values of its link, until everything in it is there."""
    notebook = NOTEBOOKS / "explorer.ipynb"
    with chromium() as browser, voila_server(tmp_path_factory.mktemp("voila"), notebook) as url, page_of(
            browser, url) as page:
        page.goto(f"{url}/?model=DeepSeek-V2-Lite&context=2048", wait_until="domcontentloaded")
        page.get_by_role("slider").first.wait_for()
        page.locator(".widget-html-content section").first.wait_for()
        yield page


def words(page) -> str:
    return " ".join(page.locator(".widget-html-content").all_inner_texts())


def pictures(page) -> list[str]:
    return page.locator(".widget-html-content svg").evaluate_all("all => all.map(image => image.outerHTML)")


def test_it_starts_where_its_link_says(app):
    assert app.get_by_label("model", exact=True).input_value() == "DeepSeek-V2-Lite"
    assert app.get_by_label("cached tokens").input_value() == "2048"
    assert "requests of 2,048 tokens" in words(app)
    assert len(pictures(app)) == 4
    assert app.get_by_role("img", name="Cache", exact=True).count() == 1
    assert "Traceback" not in app.inner_text("body")


def test_each_slider_changes_words_and_pictures(app):
    """All but d and q are in a picture as well as in the words."""
    handles, text, redrawn = app.get_by_role("slider").all(), words(app), 0
    assert len(handles) == 14
    for handle in handles:
        images, before = pictures(app), text
        back = press(app, handle)
        until(app, lambda before=before: words(app) != before)
        assert words(app) != before
        redrawn += pictures(app) != images
        app.keyboard.press(back)
        until(app, lambda before=before: words(app) == before)
        assert words(app) == before
    assert redrawn == 12


def test_by_keyboard_alone(app):
    """Tab goes from control to control and misses none; typing into a field is enough."""
    app.get_by_label("model", exact=True).focus()
    seen = []
    while "BUTTON" not in seen and len(seen) < 60:
        seen.append(app.evaluate("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
        app.keyboard.press("Tab")
    wanted = {"slider": 14, "INPUT": 17, "SELECT": 3, "TEXTAREA": 1, "BUTTON": 1, "A": 1}
    for kind, number in wanted.items():
        assert seen.count(kind) >= number, f"{seen.count(kind)} of {number} {kind} reached by Tab: {seen}"
    app.get_by_label("p qk_rope").focus()
    app.keyboard.press("Control+a")
    app.keyboard.type("63")
    app.keyboard.press("Tab")
    until(app, lambda: "RoPE turns pairs, not 63" in words(app))
    assert "RoPE turns pairs, not 63" in words(app)
    link = app.get_by_role("link", name="link to these values").get_attribute("href")
    assert re.search(r"[?&]qk_rope_head_dim=63(&|$)", link)
    app.get_by_label("config.json").focus()
    app.keyboard.type('{"a":')
    app.keyboard.press("Tab")
    app.keyboard.press("Enter")
    until(app, lambda: "not JSON" in words(app))
    assert "this is not JSON" in app.get_by_role("alert").inner_text()
