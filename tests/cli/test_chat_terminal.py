"""`sapwood chat` in a pseudo-terminal: editing, history, several lines, commands, interrupts."""

import json
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.byte_model import save_byte_model
from tests.helpers.terminal import Terminal

ROOT = Path(__file__).parents[2]
LEFT, UP, CTRL_A, CTRL_C, CTRL_D, ALT_ENTER = "\x1b[D", "\x1b[A", "\x01", "\x03", "\x04", "\x1b\r"
pytestmark = pytest.mark.slow
READY = "tokens per pass\n>"  # the line after an answer, and the prompt


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    save_byte_model(folder)
    return str(folder)


def chat(model: str, folder: Path, *more: str) -> Terminal:
    """A chat with a small model, in this folder, which also holds its cache."""
    command = [sys.executable, "-m", "sapwood", "chat", "--model", model, "--recipe", "plain"]
    env = {"PYTHONPATH": str(ROOT / "src"), "SAPWOOD_CACHE": str(folder / "cache")}
    return Terminal([*command, "--max-tokens", "6", *more], cwd=folder, env=env)


def test_a_chat_is_edited_recalled_and_saved(model: str, tmp_path: Path) -> None:
    with chat(model, tmp_path) as terminal:
        terminal.wait_for("leaves\n>")
        terminal.press(f"ello{CTRL_A}h\r")  # the cursor goes to the start of the line
        terminal.wait_for(READY)
        terminal.press(f"{UP}{LEFT}{LEFT}X\r")  # the line before, with a letter put in
        terminal.wait_for(READY)
        terminal.press(f"one{ALT_ENTER}two\r")
        terminal.wait_for(READY)
        terminal.press('"""\rfirst\rsecond\r"""\r')
        terminal.wait_for(READY)
        terminal.press(f"not sent{CTRL_C}")
        terminal.wait_for("Ctrl-D or /exit leaves\n>")
        terminal.press("/savee x\r")
        terminal.wait_for("did you mean /save?")
        terminal.press("/sa\t chat.json\r")  # the name of a command is completed
        terminal.wait_for("8 messages saved in")
        terminal.press("/exit\r")
        assert terminal.wait_exit() == 0
    saved = json.loads((tmp_path / "chat.json").read_text())
    asked = [message["content"] for message in saved if message["role"] == "user"]
    assert asked == ["hello", "helXlo", "one\ntwo", "first\nsecond"]
    history = tmp_path / "cache" / "chat" / "history"
    assert "+helXlo" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_a_second_chat_recalls_the_first_and_changes_its_recipe(model: str, tmp_path: Path) -> None:
    with chat(model, tmp_path, "--system", "be brief") as terminal:
        terminal.wait_for("leaves\n>")
        terminal.press("remembered\r")
        terminal.wait_for(READY)
        terminal.press(CTRL_D)
        assert terminal.wait_exit() == 0
    with chat(model, tmp_path, "--raw") as terminal:
        terminal.wait_for("leaves\n>")
        terminal.press("/recipe eagel3\r")
        terminal.wait_for("unknown recipe 'eagel3'; did you mean eagle3?")
        terminal.press("/recipe pld\r")
        terminal.wait_for("recipe: pld (ngram")
        terminal.press("/system be kind\r")
        terminal.wait_for("system: be kind")
        terminal.press(f"{UP}{UP}{UP}{UP}\r")  # past the commands, to the earlier chat
        terminal.wait_for(READY)
        terminal.press("/save chat.md\r")
        terminal.wait_for("3 messages saved")
        terminal.press("/save chat.md\r")
        terminal.wait_for("chat.md exists; name another file")
        terminal.press("/clear\r")
        terminal.wait_for("starts over")
        terminal.press("/help\r")
        terminal.wait_for("/save FILE")
        terminal.press("/exit\r")
        assert terminal.wait_exit() == 0
    text = (tmp_path / "chat.md").read_text()
    assert text.startswith("**system**\n\nbe kind\n\n**user**\n\nremembered\n")


def test_an_answer_is_interrupted(model: str, tmp_path: Path) -> None:
    with chat(model, tmp_path, "--max-tokens", "100000") as terminal:
        terminal.wait_for("leaves\n>")
        terminal.press("hi\r")
        terminal.wait_for("hi")
        terminal.wait_for("\n")  # the editor has left the line to the answer
        time.sleep(0.5)
        terminal.press(CTRL_C)
        terminal.wait_for("\n>")
        terminal.press("/save cut.json\r")
        terminal.wait_for("saved in cut.json")
        terminal.wait_for("\n>")  # until the editor reads keys, Ctrl-D would be lost
        time.sleep(0.5)
        terminal.press(CTRL_D)
        assert terminal.wait_exit() == 0
    assert [message["role"] for message in json.loads((tmp_path / "cut.json").read_text())]
