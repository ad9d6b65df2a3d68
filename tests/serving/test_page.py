"""Page of the server in a real browser: with the keyboard only, narrow, dark, and through the accessibility tree."""

import contextlib

import browser
import pytest
import test_served_commands
import test_server
import trained

from t2t.serving import server

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def served(service):
  """Serves a page; yields its address."""
  with server.make_server(service, host="127.0.0.1", port=0) as running:
    yield f"http://127.0.0.1:{running.server_port}/"


@pytest.fixture(scope="module")
def writes():
  """A browser, and the address of the page of an encoder-decoder."""
  with browser.opened() as page, served(test_server.service("encoder_decoder")) as address:
    yield page, address


def opened(writes, **options):
  page, address = writes
  page.said.clear()
  page.open(address, **options)
  page.until("document.getElementById('limit').textContent")
  return page


def choose(page, **values):
  """Sets the values of the page's controls, with the events of typing."""
  for name, value in values.items():
    chosen = "checked" if isinstance(value, bool) else "value"
    shown = str(value).lower() if isinstance(value, bool) else f"'{value}'"
    page.do(
      f"(() => {{ const x = document.querySelector('#{name}, [data-option={name}]'); x.{chosen} = {shown};"
      " x.dispatchEvent(new Event('input', {bubbles: true})); x.dispatchEvent(new Event('change')); })()"
    )


def mode(page, name):
  page.do(f"document.querySelector('[name=mode][value={name}]').click()")


ANSWERED = "document.getElementById('write').textContent === 'Generate' && document.querySelector('article .facts')"


def test_by_keyboard_alone(writes):
  """Typing, sending, and moving through the tokens with their probabilities work without script errors."""
  page = opened(writes)
  assert page.do("document.activeElement.id") == "inputs"
  choose(page, max_length=6)
  mode(page, "greedy")
  page.do("document.getElementById('inputs').focus()")
  page.type("dog fox")
  page.press("Enter", control=True)
  page.until(f"{ANSWERED} && document.querySelector('.token')")
  number = page.do("document.querySelectorAll('.token').length")
  for _ in range(40):
    page.press("Tab")
    if page.do("document.activeElement.classList.contains('token')"):
      break
  first = page.do("document.activeElement.getAttribute('aria-label')")
  assert "%" in first and "likeliest: " in first
  assert page.do("document.querySelector('.tip:not([hidden])').textContent") == first
  for _ in range(number):
    page.press("ArrowRight")
  assert page.do("document.activeElement === [...document.querySelectorAll('.token')].at(-1)")
  page.press("Tab")
  assert page.do("document.activeElement.tagName") == "SUMMARY"
  page.press("Enter")
  assert page.do("document.querySelectorAll('details[open] tbody tr').length") == number
  assert page.said == []


def test_several_inputs_behind_a_prefix(writes):
  """Each line gets the prefix; each answer has its heading."""
  page = opened(writes)
  choose(page, max_length=3, prefix="fix:", lines=True, inputs="one\\n\\ntwo")
  mode(page, "greedy")
  page.press("Enter", control=True)
  page.until("document.querySelectorAll('article .facts').length === 2 && !running")
  assert page.do("[...document.querySelectorAll('article h3')].map((x) => x.textContent)") == [
    "1. fix: one",
    "2. fix: two",
  ]
  assert page.do("document.getElementById('status').textContent") == "2 inputs answered"


@pytest.mark.parametrize(("how", "options"), [("sample", {"n": 3}), ("beam", {"beam": 3})])
def test_alternatives_side_by_side(how, options, writes):
  page = opened(writes)
  mode(page, how)
  choose(page, max_length=4, inputs="dog", **options)
  page.press("Enter", control=True)
  page.until("document.querySelectorAll('.alternative .token').length && !running")
  assert page.do("document.querySelectorAll('.alternative').length") == 3
  places = page.do("[...document.querySelectorAll('.alternative')].map((x) => x.getBoundingClientRect().top)")
  assert len(set(places)) < 3, "some are beside each other"


def test_attention_is_drawn(writes):
  """Arrow keys move between cells; selecting another kind redraws; without a text an error is shown."""
  page = opened(writes)
  page.do("document.getElementById('look').click()")
  page.until("!document.getElementById('attention-error').hidden")
  mode(page, "greedy")
  choose(page, max_length=4, inputs="dog")
  page.press("Enter", control=True)
  page.until("document.querySelector('.token') && !running")
  page.do("document.getElementById('look').click()")
  page.until("!document.getElementById('map').hidden")
  assert page.do("document.getElementById('picture').getAttribute('aria-label')") == (
    "Attention of encoder, layer 1, head 1: 4 rows, 4 columns"
  )
  choose(page, which="cross")
  page.until("map.which === 'cross'")
  page.do("document.getElementById('picture').focus()")
  page.press("ArrowRight")
  said = page.do("document.getElementById('cell').textContent")
  assert said.startswith("(start) (1) attends to o (2): ") and said.endswith("%")
  assert page.do("document.getElementById('picture').getContext('2d').getImageData(0, 0, 400, 300).data.some((x) => x)")
  assert page.said == []


def test_a_screen_reader_finds_everything(writes):
  """Every control has a name, heading levels do not skip, and changes are in live regions."""
  page = opened(writes)
  mode(page, "sample")
  choose(page, max_length=4, n=2, inputs="dog")
  page.press("Enter", control=True)
  page.until("document.querySelector('.alternative .token') && !running")
  nodes = page.call("Accessibility.getFullAXTree")["nodes"]
  of = lambda node, name: node.get(name, {}).get("value")
  controls = {"button", "textbox", "slider", "spinbutton", "radio", "checkbox", "combobox", "img"}
  found = [node for node in nodes if not node["ignored"] and of(node, "role") in controls]
  assert len(found) > 15 and [node for node in found if not of(node, "name")] == []
  levels = page.do(
    "[...document.querySelectorAll('h1, h2, h3, h4')].filter((x) => x.checkVisibility()).map((x) => +x.tagName[1])"
  )
  assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
  assert page.do("document.getElementById('said').textContent.length > 0")
  assert page.do("[...document.querySelectorAll('[role=status], [role=alert], [aria-live]')].length") >= 5


# Contrast ratio (WCAG 2.2, 1.4.3) of each visible text with its background.
_CONTRASTS = """
(() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((x) => x / 255)
    .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')].filter((node) => node.checkVisibility()
      && [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())).map((node) => {
    const [one, other] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), node.outerHTML.slice(0, 80)];
  });
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_narrow_and_readable(dark, writes):
  """At 390 pixels nothing overflows, contrast is at least 4.5, and the focus is visible."""
  page = opened(writes, width=390, height=844, dark=dark)
  mode(page, "sample")
  choose(page, max_length=4, n=2, inputs="dog " * 10)
  page.press("Enter", control=True)
  page.until("document.querySelector('.alternative .token') && !running")
  page.do("document.getElementById('look').click()")
  page.until("!document.getElementById('map').hidden")
  assert page.do("document.documentElement.scrollWidth") <= 390
  assert [each for each in page.do(_CONTRASTS) if each[0] < 4.5] == []
  seen = set()
  page.do("document.getElementById('inputs').focus()")
  for _ in range(25):
    page.press("Tab")
    outline = page.do(
      "(() => { const x = document.activeElement; const s = getComputedStyle(x.name === 'mode' ? x.nextSibling : x);"
      " return [x.id || x.className || x.dataset.option || x.name || x.tagName, s.outlineStyle, s.outlineWidth]; })()"
    )
    seen.add(outline[0])
    assert outline[0] == "BODY" or (outline[1] != "none" and outline[2] != "0px"), outline
  assert {"lines", "odds", "write", "temperature"} <= seen


def test_blanks_are_filled(writes):
  """An encoder-only model: the blank's fillings, and its self-attention."""
  page, _ = writes
  with served(test_served_commands.service(trained.workdir("encoder_only"), "--top=3")) as address:
    page.open(address)
    page.until("document.getElementById('write').textContent === 'Fill'")
    assert page.do("document.getElementById('prefix-field').checkVisibility()") is False
    choose(page, inputs="the [MASK] fox")
    page.press("Enter", control=True)
    page.until("document.querySelectorAll('article tbody tr').length === 3 && !running")
    page.do("document.getElementById('look').click()")
    page.until("!document.getElementById('map').hidden")
    assert page.do("map.which") == "encoder" and page.do("map.keys.length") == page.do("map.queries.length")


def test_nothing_else_is_asked(writes):
  """The page's policy blocks nothing, and no other host is contacted."""
  page, address = writes
  page.open(address)
  page.until("document.getElementById('limit').textContent")
  names = page.do("performance.getEntriesByType('resource').map((x) => x.name)")
  assert names == [f"{address}about"]
