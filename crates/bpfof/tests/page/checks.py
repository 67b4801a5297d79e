#!/usr/bin/env python3
"""Looks at the live page of a target under load: checks.py URL PICTURES HOST FUNCTION

HOST and FUNCTION are names that would be HTML. Pictures are written to the folder PICTURES.
"""

import json
import sys

from browser import Browser

DESKTOP = (1200, 860)
PHONE = (390, 844)


def text_of(browser, selector):
    return browser.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")


def column(browser, table, index):
    """The figures of a column, as numbers."""
    cells = f"[...document.getElementById('{table}').tBodies[0].rows].map((row) => row.cells[{index}].textContent)"
    return [float(cell.replace(",", "")) if cell != "–" else -1 for cell in browser.evaluate(cells)]


def shows_what_happens(browser, host, function):
    browser.wait("document.querySelectorAll('#overview dd').length === 8")
    browser.wait("document.querySelectorAll('#slow details').length >= 10")
    browser.wait("document.getElementById('state').textContent.startsWith('3 hosts, ')")
    chains = "document.getElementById('namespaces').tBodies[0].rows[0].cells[5].textContent"
    browser.wait(f"Number({chains}.replaceAll(',', '')) > 0")
    names = browser.evaluate("[...document.querySelectorAll('#hosts tbody td:first-child')].map((td) => td.textContent)")
    assert host in names and len(names) == 3, names
    names = browser.evaluate(
        "[...document.querySelectorAll('#functions tbody td:first-child')].map((td) => td.textContent)")
    assert sorted(names) == sorted([function, "bpfkv_get"]), names
    for table, rows in (("namespaces", 3), ("reactors", 1), ("memory", 7)):
        count = browser.evaluate(f"document.getElementById('{table}').tBodies[0].rows.length")
        assert count == rows, (table, count)


def names_stay_names(browser):
    assert browser.evaluate("document.title") == "bpf-of target"
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    # If a script were inserted into the page, the policy would not let it run.
    browser.evaluate("document.body.append(Object.assign(document.createElement('script'), "
                     "{ textContent: 'document.title = \"owned\"' }))")
    assert browser.evaluate("document.title") == "bpf-of target"
    browser.evaluate("document.body.lastElementChild.remove()")
    refused = browser.problems()
    assert len(refused) == 1 and "Content Security Policy" in json.dumps(refused), refused
    browser.events.clear()


def works_with_the_keyboard(browser):
    focus = "document.activeElement.textContent.trim()"
    browser.evaluate("document.activeElement.blur()")
    browser.press("Tab")
    assert browser.evaluate(focus) == "Skip to the figures", browser.evaluate(focus)
    browser.press("Tab")
    assert browser.evaluate(focus).startswith("Pause"), browser.evaluate(focus)
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    # Sorting, by the first column of namespaces and then by the size.
    browser.press("Tab")
    assert browser.evaluate(focus) == "namespace", browser.evaluate(focus)
    browser.press("Enter")
    sort = "document.activeElement.closest('th').getAttribute('aria-sort')"
    assert browser.evaluate(sort) == "ascending"
    browser.press("Enter")
    assert browser.evaluate(sort) == "descending"
    first = browser.evaluate("document.getElementById('namespaces').tBodies[0].rows[0].cells[0].textContent")
    assert first.startswith("3 of "), first
    for _ in range(5):
        browser.press("Tab")
    assert browser.evaluate(focus) == "chains"
    browser.press("Enter")
    figures = column(browser, "namespaces", 5)
    assert figures == sorted(figures, reverse=True), figures
    # The focus stays when figures change.
    before = browser.evaluate("performance.now()")
    browser.wait(f"performance.now() > {before} + 2500")
    assert browser.evaluate(focus) == "chains"
    # A chain is opened, and stays open.
    browser.evaluate("[...document.querySelectorAll('#slow details')].find((of) => of.querySelector('.hops'))"
                     ".querySelector('summary').focus()")
    browser.press("Enter")
    opened = browser.evaluate("document.activeElement.parentElement.open && "
                              "document.activeElement.parentElement.querySelectorAll('.hops li').length")
    assert opened == 4, opened


def pauses(browser):
    browser.press("p")
    assert browser.evaluate("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    assert text_of(browser, "#state") == "paused"
    shown = "document.getElementById('namespaces').innerText"
    before = browser.evaluate(shown)
    until = browser.evaluate("performance.now()") + 2500
    browser.wait(f"performance.now() > {until}")
    assert browser.evaluate(shown) == before
    assert text_of(browser, "#state") == "paused", text_of(browser, "#state")
    browser.press("p")
    browser.wait(f"{shown} !== {json.dumps(before)}")
    browser.wait("document.getElementById('state').textContent.includes('hosts')")


def fits(browser, pictures):
    """In the light and in the dark, on a desk and on a phone."""
    luminance = """(() => {
        const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    })()"""
    for scheme in ("light", "dark"):
        for name, (width, height) in (("page", DESKTOP), ("phone", PHONE)):
            browser.screen(width, height, scheme, is_phone=name == "phone")
            browser.wait("document.querySelectorAll('#overview dd').length === 8")
            light = browser.evaluate(luminance)
            assert light > 200 if scheme == "light" else light < 60, (scheme, light)
            wide = browser.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} has {wide} pixels of {width}"
            clipped = browser.evaluate("""[...document.querySelectorAll('td, dd, .what, .reads')]
                .filter((of) => of.getBoundingClientRect().right > innerWidth + 1 || of.scrollWidth > of.clientWidth + 1)
                .map((of) => of.textContent)""")
            assert clipped == [], clipped
            browser.evaluate("window.scrollTo(0, 0)")
            browser.picture(f"{pictures}/{name}-{scheme}.png")
    browser.screen(*DESKTOP, "light")
    browser.evaluate("document.getElementById('h-slow').scrollIntoView(); scrollBy(0, -70)")
    browser.picture(f"{pictures}/page-slow.png")


def main():
    url, pictures, host, function = sys.argv[1:]
    with Browser() as browser:
        browser.screen(*DESKTOP, "light")
        browser.open(url)
        shows_what_happens(browser, host, function)
        assert browser.problems() == [], browser.problems()
        names_stay_names(browser)
        works_with_the_keyboard(browser)
        pauses(browser)
        # Enough history for the curves.
        browser.wait("document.querySelector('#overview polyline').getAttribute('points').split(' ').length >= 8")
        fits(browser, pictures)
        assert browser.problems() == [], browser.problems()


main()
