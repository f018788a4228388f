"""Takes the pictures of the playground for the docs, from a real server and the built-in model.

python tools/playground_pictures.py [--question TEXT] [--out docs/pictures]
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.helpers.browser import Browser  # noqa: E402 - the root must be on the path first

QUESTION = "Write a Python function that checks whether a string is a palindrome, with tests."
ENDED = (
    "document.getElementById('stop').hidden && "
    "document.querySelector('.turn.assistant footer').textContent"
)
# the round whose tree shows most: many nodes kept, some refused, not too large
CHOOSE = """(async () => {
  const scrub = document.getElementById('scrub');
  let best = [0, 1];
  for (let round = 1; round <= Number(scrub.max); round += 1) {
    scrub.value = round;
    scrub.dispatchEvent(new Event('input'));
    const kept = document.querySelectorAll('#tree .accepted.node').length;
    const all = document.querySelectorAll('#tree .node[data-node]').length;
    const worth = Math.min(kept, 5) - 2 * Math.max(kept - 6, 0)
      + Math.min(all - kept, 12) / 3 - Math.max(all - 24, 0);
    if (worth > best[0]) best = [worth, round];
  }
  scrub.value = best[1];
  scrub.dispatchEvent(new Event('input'));
  return best[1];
})()"""


def start() -> tuple[subprocess.Popen[str], int]:
    """A server on a free port."""
    command = [sys.executable, "-m", "sapwood", "serve", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r'"listening".*"port":(\d+)', line):
            return process, int(found.group(1))
    raise SystemExit("the server did not start")


def take(browser: Browser, address: str, question: str, out: Path) -> None:
    """Ask a question, and take pictures of the answer in three ways."""
    browser.resize(1440, 900, scale=1.5)
    browser.prefer(prefers_color_scheme="light")
    browser.open(address)
    browser.wait("document.getElementById('facts').textContent")
    for words in ("Hello!", question):  # the first one warms the server up
        browser.click("#question")
        browser.type(words)
        browser.press("Enter")
        browser.wait("!document.getElementById('stop').hidden")
        browser.wait(ENDED, 120)
        if words != question:
            browser.click("#fresh")
    browser.run(CHOOSE)
    browser.run("document.getElementById('log').scrollTop = 0")
    browser.run("document.querySelector('#tree .node.accepted').focus()")
    shot(browser, out / "playground.png")
    browser.prefer(prefers_color_scheme="dark")
    shot(browser, out / "playground-dark.png")
    browser.resize(390, 844, phone=True, scale=2)
    browser.prefer(prefers_color_scheme="light")
    shot(browser, out / "playground-phone.png")


def shot(browser: Browser, path: Path) -> None:
    """Take one picture, after all animations."""
    time.sleep(1.5)
    browser.picture(path)


def main() -> None:
    """Take all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args()
    process, port = start()
    try:
        with Browser() as browser:
            take(browser, f"http://127.0.0.1:{port}/", given.question, given.out)
            assert browser.problems == [], browser.problems
    finally:
        process.terminate()
        process.wait(60)


if __name__ == "__main__":
    main()
