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
    assert app.title() == "MLA explorer"
    assert app.get_by_label("cached tokens", exact=True).input_value() == "2048"
    assert "requests of 2,048 tokens" in words(app)
    assert len(pictures(app)) == 4
    assert app.get_by_role("img", name="Cache", exact=True).count() == 1
    assert "Traceback" not in app.inner_text("body")


def test_the_panel_comes_first_and_stays_in_view(app):
    """On a small screen: controls at once, one scroll bar, and the controls beside the last of the pictures."""
    controls, size = app.locator(".mla-controls"), app.viewport_size
    app.set_viewport_size({"width": 1280, "height": 800})
    assert controls.bounding_box()["y"] < 200
    scrolling = app.locator("*").evaluate_all("""all => all.filter(e => e.scrollHeight > e.clientHeight + 4
        && ['auto', 'scroll'].includes(getComputedStyle(e).overflowY)).map(e => e.className)""")
    assert len(scrolling) == 1, scrolling
    app.get_by_text("Claims that say nothing here").first.scroll_into_view_if_needed()
    app.wait_for_timeout(300)
    box = controls.bounding_box()
    assert box["y"] + box["height"] > 300, box
    app.set_viewport_size(size)


def test_menus_say_their_values(app):
    """By arrow keys, by name, and in words: no exponent."""
    menu = app.get_by_label("cached tokens, usual values")
    assert menu.locator("option:checked").inner_text() == "2,048"
    text, images = words(app), pictures(app)
    menu.focus()
    app.keyboard.press("ArrowDown")
    until(app, lambda: words(app) != text)
    assert "requests of 4,096 tokens" in words(app) and pictures(app)[0] != images[0]
    app.keyboard.press("ArrowUp")
    until(app, lambda: words(app) == text)
    assert words(app) == text


def test_each_slider_changes_words_and_pictures(app):
    """All but d and q are in a picture as well as in the words."""
    handles, text, redrawn = app.get_by_role("slider").all(), words(app), 0
    assert len(handles) == 10
    for handle in handles:
        images, before = pictures(app), text
        back = press(app, handle)
        until(app, lambda before=before: words(app) != before)
        assert words(app) != before
        redrawn += pictures(app) != images
        app.keyboard.press(back)
        until(app, lambda before=before: words(app) == before)
        assert words(app) == before
    assert redrawn == 8


def test_by_keyboard_alone(app):
    """Tab goes from control to control and misses none; typing into a field is enough."""
    app.get_by_label("model", exact=True).focus()
    seen = []
    while seen.count("BUTTON") < 2 and len(seen) < 60:
        seen.append(app.evaluate("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
        app.keyboard.press("Tab")
    wanted = {"slider": 10, "INPUT": 17, "SELECT": 7, "TEXTAREA": 1, "BUTTON": 2, "A": 1}
    for kind, number in wanted.items():
        assert seen.count(kind) >= number, f"{seen.count(kind)} of {number} {kind} reached by Tab: {seen}"
    app.get_by_label("qk_rope_head_dim (p)").focus()
    app.keyboard.press("Control+a")
    app.keyboard.type("63")
    app.keyboard.press("Tab")
    until(app, lambda: "RoPE turns pairs, not 63" in words(app))
    assert "RoPE turns pairs, not 63" in words(app)
    link = app.get_by_role("link", name="link to these values").get_attribute("href")
    assert re.search(r"[?&]qk_rope_head_dim=63(&|$)", link)
    app.get_by_role("button", name="Back to DeepSeek-V2-Lite as it is").focus()
    app.keyboard.press("Enter")
    until(app, lambda: "RoPE turns pairs" not in words(app))
    assert "RoPE turns pairs" not in words(app)
    app.get_by_label("config.json").focus()
    app.keyboard.type('{"a":')
    app.keyboard.press("Tab")
    app.keyboard.press("Enter")
    until(app, lambda: "not JSON" in words(app))
    assert "this is not JSON" in app.get_by_role("alert").inner_text()
