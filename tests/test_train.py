"""`sapwood train`: what it leaves behind, what it survives, and what it refuses."""

import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from sapwood import trained
from sapwood.api import LLM
from sapwood.backends.torch.load import load
from sapwood.cli.bars import Bars
from sapwood.cli.main import main
from sapwood.heads import files
from sapwood.heads.facts import TargetFacts
from sapwood.train import job, kinds, loop
from sapwood.train.corpus import Corpus
from sapwood.train.loop import LoopSettings
from sapwood.train.target import Teacher
from tests import tiny, words

LETTERS = "abcdefghijklmnopqrstuvwxyz. ABCDEFGHIJKLMNOPQRSTUVWXYZ!"
EAGLE3 = "eagle3(vocabulary=200, unroll=3, inner=48, rate=0.01, matrix_rate=0.02)"
MEDUSA = "medusa(heads=2, vocabulary=200)"
STEPS, TOKENS = 40, 1000
FULL = Path("/dev/full")
HEAD, CONFIG = "model.safetensors", "config.json"


@dataclass(frozen=True)
class Place:
    """Folders that tests share."""

    model: Path
    prompts: Path
    data: Path  # a finished corpus
    whole: Path  # a head from a run that nobody disturbed


def counter() -> Any:
    """A model that goes on with the next letter, whatever it is asked, and errs a little when it is warm."""
    model = tiny.make("llama", vocab_size=words.SIZE, eos_token_id=words.EOS)
    letters = words.text().encode(f"{LETTERS}a", whole=False)
    said, after = [*letters[:-1], words.SIZE - 2, words.SIZE - 1], [*letters[1:], letters[28], letters[0]]
    with torch.no_grad():
        for layer in model.model.layers:  # these only disturb
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
        embedding = model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.zero_().index_add_(0, torch.tensor(after), 0.35 * embedding[said])
    return model


def hurry(patch: pytest.MonkeyPatch, save: float = 60.0) -> None:
    """Small batches, and a state as often as asked for."""
    patch.setitem(job.BATCH, "cpu", 512)
    patch.setattr(job, "LoopSettings", partial(LoopSettings, save=save))


def asked(place: Place, *more: str, teach: tuple[str, ...] = (EAGLE3,), data: Path | None = None) -> list[str]:
    """The command, as far as tests share it."""
    options = {"model": place.model, "prompts": place.prompts, "data": data or place.data}
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["train", *teach, *given, "--tokens", str(TOKENS), "--device", "cpu", "--threads", "1", *more]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root: Path = tmp_path_factory.mktemp("train")
    made = Place(root / "model", root / "prompts.jsonl", root / "data", root / "whole")
    counter().save_pretrained(made.model)
    words.save(made.model)
    lines = [{"prompt": "tell me"}, {"messages": [{"role": "user", "content": "go on"}]}, {"prompt": "more"}]
    made.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        assert main(asked(made, "--steps", str(STEPS), "--out", str(made.whole))) == 0
    return made


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPWOOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sapwood.profile.QUICK_S", 0.0)
    monkeypatch.setattr("sapwood.profile.FULL_S", 0.0)
    hurry(monkeypatch)


def sentence(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one sentence on which this command ends."""
    capsys.readouterr()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [
        line for line in err.splitlines() if not re.match("sapwood: (loading|packing|training|texts|steps) ", line)
    ]
    assert len(lines) == 1, err
    assert lines[0].startswith("sapwood: ")
    assert "Traceback" not in err
    return lines[0]


def same(one: Path, other: Path) -> bool:
    """True for heads that are alike to the last byte."""
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in (HEAD, CONFIG))


# ------------------------------------------------------------------------------------ what it leaves
def test_a_trained_head_is_found_and_keeps_the_text(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked(place, "--steps", str(STEPS), "--json")) == 0
    [record] = json.loads(capsys.readouterr().out)["trained"]
    home = Path(record["out"])
    assert tmp_path / "cache" in home.parents
    assert sorted(path.name for path in home.iterdir()) == sorted(
        [CONFIG, HEAD, "training.json", "training.md", "training.png"]
    )
    assert (home / "training.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert same(home, place.whole)
    llms = [LLM(str(place.model), recipe=recipe, device="cpu") for recipe in ("plain", "eagle3")]
    plain, ours = (llm.generate("tell me", max_tokens=60) for llm in llms)
    assert ours.tokens == plain.tokens
    assert LETTERS[:50] in plain.text
    assert ours.stats.passes < 0.7 * plain.stats.passes


def test_the_loss_falls_and_agreement_rises(place: Place) -> None:
    record = json.loads((place.whole / "training.json").read_text())
    first, *_, last = record["curve"]
    assert len(record["curve"]) == 20
    assert last["step"] == record["steps"] == STEPS
    assert last["loss"] < first["loss"] / 2
    assert max(first["agreement"]) < 0.1
    assert min(last["agreement"]) > 0.3
    page = (place.whole / "training.md").read_text()
    assert page.count("| steps |") == 1
    assert f"{last['loss']:.3f} at the end" in page
    assert record["facts"]["answer_tokens"] == Corpus.open(place.data).written >= TOKENS


def test_a_run_may_begin_from_an_earlier_head(place: Place, tmp_path: Path) -> None:
    began = f"eagle3(start='{place.whole}', unroll=3, rate=0.0001, matrix_rate=0.0001)"
    assert main(asked(place, "--steps", "5", "--out", str(tmp_path / "on"), teach=(began,))) == 0
    before, after = (json.loads((home / "training.json").read_text()) for home in (place.whole, tmp_path / "on"))
    assert after["curve"][0]["loss"] < 1.1 * before["curve"][-1]["loss"]
    assert after["facts"]["draft_vocabulary"] == before["facts"]["draft_vocabulary"] == 200
    one, other = (files.load(home).state_dict() for home in (place.whole, tmp_path / "on"))
    assert torch.equal(one["d2t"], other["d2t"])
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


def test_a_run_begins_from_no_head_that_does_not_fit(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = Path(trained.SHIPPED) / "smollm2"
    for start, said in (
        (tmp_path, "config.json"),
        (shipped / "medusa", "holds another kind of head; name the folder of a trained eagle3"),
        (shipped / "eagle3", "was made for another model; begin anew without it"),
    ):
        teach = (f"eagle3(start='{start}')",)
        assert said in sentence(capsys, asked(place, "--steps", "1", "--out", str(tmp_path / "out"), teach=teach))


def test_several_at_once_are_as_each_would_be_alone(place: Place, tmp_path: Path) -> None:
    several = (EAGLE3, MEDUSA)
    assert main(asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "both"), teach=several)) == 0
    assert main(asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "alone"), teach=(MEDUSA,))) == 0
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == ["eagle3", "medusa"]
    for ours, theirs in (("eagle3", place.whole), ("medusa", tmp_path / "alone")):
        mine = tmp_path / "both" / ours
        assert (mine / HEAD).read_bytes() == (theirs / HEAD).read_bytes()
        curves = [json.loads((home / "training.json").read_text())["curve"] for home in (mine, theirs)]
        for key in ("step", "tokens", "loss", "agreement"):
            assert [point[key] for point in curves[0]] == [point[key] for point in curves[1]]


def test_every_kind_is_written_as_it_is_read(place: Place, tmp_path: Path) -> None:
    several = (EAGLE3, "eagle", MEDUSA, "hydra", "early-exit", "parallel", "recurrent", "draft-model(width=24)")
    assert main(asked(place, "--steps", "3", "--out", str(tmp_path / "all"), teach=several)) == 0
    facts = TargetFacts.of(json.loads((place.model / CONFIG).read_text()), str(place.model))
    names = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert names == sorted(re.sub(r"\(.*", "", kind) for kind in several)
    for name in names:
        home, again = tmp_path / "all" / name, tmp_path / "again" / name
        assert not (home / "state.safetensors").exists()
        if name == "draft-model":
            continue
        found = files.read(home)
        files.save(found.head, again, found.about, facts=facts)
        assert same(again, home), name


def test_a_draft_model_is_a_model(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "draft"
    assert main(asked(place, "--steps", "2", "--out", str(out), teach=("draft-model(width=24)",))) == 0
    auto: Any = AutoModelForCausalLM
    one = auto.from_pretrained(out, dtype=torch.float32).eval()
    one.save_pretrained(tmp_path / "again")
    two = auto.from_pretrained(tmp_path / "again", dtype=torch.float32).eval()
    tokens = torch.tensor([[256, 258, 5, 6, 7]])
    with torch.inference_mode():
        logits = one(input_ids=tokens).logits
        assert logits.std() > 0.1
        assert torch.equal(logits, two(input_ids=tokens).logits)
    capsys.readouterr()
    recipe = f"draft-model(model='{out}') + chain + match + fixed(nodes=4, depth=4, width=1)"
    assert main(["run", "tell me", "--model", str(place.model), "--recipe", recipe, "--max-tokens", "20"]) == 0
    drafted = capsys.readouterr().out
    assert main(["run", "tell me", "--model", str(place.model), "--recipe", "plain", "--max-tokens", "20"]) == 0
    assert capsys.readouterr().out == drafted


# ---------------------------------------------------------------------------------- what it survives
def die(where: str, arguments: list[str], cache: str) -> None:
    """Run the command in a process that is killed on the way."""
    os.environ["SAPWOOD_CACHE"] = cache
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch, save=0.0)
        killing(where, patch)
        main(arguments)


def killing(where: str, patch: pytest.MonkeyPatch) -> None:
    """Kill this process between two steps, within a state's bytes, or while texts are made."""
    keep, write, calls = loop.Loop._keep, Path.write_bytes, count()

    def keep_some(self: loop.Loop) -> None:
        if self.notes.step == STEPS // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        keep(self)

    def write_half(self: Path, content: bytes) -> int:
        if next(calls) < 5:
            return write(self, content)
        write(self, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def tell(_: Bars, pace: Any) -> None:
        if pace.done > TOKENS // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    if where == "steps":
        patch.setattr(loop.Loop, "_keep", keep_some)
    elif where == "state":
        patch.setattr(Path, "write_bytes", write_half)
    else:
        patch.setattr(Bars, "data", tell)


@pytest.mark.parametrize("where", ["steps", "state", "texts"])
def test_a_killed_run_goes_on_to_the_same_end(
    where: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = multiprocessing.get_context("forkserver")  # which loads torch once for all that are killed
    context.set_forkserver_preload(["tests.test_train"])
    data, out = tmp_path / "data" if where == "texts" else place.data, tmp_path / "out"
    arguments = asked(place, "--steps", str(STEPS), "--out", str(out), data=data)
    process = context.Process(target=die, args=(where, arguments, os.environ["SAPWOOD_CACHE"]))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not (out / HEAD).exists()
    assert (out / "state.safetensors").exists() == (where != "texts")
    assert main(arguments) == 0
    assert same(out, place.whole)
    capsys.readouterr()
    if where == "texts":
        for ours in place.data.iterdir():
            assert (data / ours.name).read_bytes() == ours.read_bytes()


@pytest.mark.parametrize(
    ("stage", "number"), [("steps", signal.SIGTERM), ("steps", signal.SIGINT), ("data", signal.SIGTERM)]
)
def test_a_run_that_is_asked_to_stop_keeps_its_state(
    stage: str,
    number: signal.Signals,
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data, out = tmp_path / "data" if stage == "data" else place.data, tmp_path / "out"
    arguments, before = asked(place, "--steps", str(STEPS), "--out", str(out), data=data), signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Bars, stage, lambda *_: os.kill(os.getpid(), number))
        said = sentence(capsys, arguments)
    assert said.endswith("; run the same command again to go on")
    assert ("stopped after step 2 of 40" if stage == "steps" else "writing its texts") in said
    assert signal.getsignal(number) is before
    assert (out / "state.safetensors").exists() == (stage == "steps")
    assert main(arguments) == 0
    assert same(out, place.whole)


def test_a_run_planned_from_time_keeps_its_plan_after_a_stop(place: Place, tmp_path: Path) -> None:
    """Stopped at any step, before or after the plan is made, it ends with a plan and all its steps."""
    course, settings, texts = kinds.course(MEDUSA), LoopSettings(seconds=0.2, tokens=256), Corpus.open(place.data)
    teacher = Teacher(load(str(place.model), device="cpu")[0])

    def run(state: Path, last: int | None = None) -> loop.Notes:
        ticks = count()
        made = loop.Loop(course, teacher, texts, settings, state, now=lambda: next(ticks) * 1e-3)
        made.asked_to_stop = lambda: made.notes.step == last
        return made.run()[1]

    whole = run(tmp_path / "whole")
    for last in (5, loop.PROBE - 1, loop.PROBE, loop.PROBE + 7):
        state = tmp_path / str(last)
        with pytest.raises(loop.Stopped):
            run(state, last)
        plan = loop.remembered(state).plan
        assert (plan is None) == (last < loop.PROBE)
        notes = run(state)
        assert notes.step == notes.plan == (plan or notes.plan)
        assert notes.plan == pytest.approx(whole.plan, rel=0.3)
        assert notes.curve[-1].step == notes.step


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("what", ["state", "shard", "head", "page", "picture"])
def test_a_full_disk_loses_nothing(
    what: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hurry(monkeypatch, save=0.0)
    data, out = tmp_path / "data" if what == "shard" else place.data, tmp_path / "out"
    full = {
        "state": out / "state.safetensors.new",
        "shard": data / "shard-00000.part",
        "head": out / f".{HEAD}.{os.getpid()}.new",
        "page": out / "training.md.new",
        "picture": out / "training.png.new",
    }[what]
    full.parent.mkdir()
    arguments = asked(place, "--steps", str(STEPS), "--out", str(out), data=data)
    if what == "state":  # a state was saved before
        stopped(place, out, monkeypatch, capsys)
    if what == "head":  # another head was trained before
        older: Any = files.load(place.whole)
        torch.nn.init.zeros_(older.fc.weight)
        files.save(older, out)
    kept = {path: path.read_bytes() for path in out.iterdir()} if out.exists() else {}
    assert bool(kept) == (what in ("state", "head"))
    full.symlink_to(FULL)
    said = sentence(capsys, arguments)
    assert "full" in said or "No space left" in said or "no room" in said
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert not full.is_symlink()
    assert (out / "state.safetensors").exists() == (what != "shard")
    assert main(arguments) == 0
    assert same(out, place.whole)
    assert not (out / "state.safetensors").exists()


def test_minutes_are_kept_roughly(place: Place, tmp_path: Path) -> None:
    begin = time.monotonic()
    arguments = [word for word in asked(place, data=tmp_path / "data") if word not in ("--tokens", str(TOKENS))]
    assert main([*arguments, "--minutes", "0.1", "--out", str(tmp_path / "out")]) == 0
    assert time.monotonic() - begin < 18
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert record["steps"] > loop.PROBE


# ----------------------------------------------------------------------------------- what it refuses
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is no file"),
        (b"", "holds no prompts"),
        (b"\n  \n", "holds no prompts"),
        (b'{"prompt": "a"}\n\n{"prompt": \n', "line 3 of .* is not JSON"),
        (b'{"prompt": "a"}\n{"prompt": 7}\n', "line 2 of .* without words"),
        (b'{"prompt": "a"}\n{"messages": "b"}\n', "line 2 of .* wrong kind"),
        (b'{"prompt": "a"}\n["b"]\n', "line 2 of .* no JSON object"),
        (b'{"prompt": "a"}\n{"messages": [{"role": "user"}]}\n', "line 2 of .* without words"),
        (b'{"prompt": "a"}\n{"prompt": "\xff"}\n', "not UTF-8"),
    ],
)
def test_bad_prompts(
    content: bytes | None, said: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, out, data = tmp_path / "bad.jsonl", tmp_path / "out", tmp_path / "data"
    if content is not None:
        prompts.write_bytes(content)
    bad = [*asked(place, "--out", str(out), data=data), "--prompts", str(prompts)]
    assert re.search(said, sentence(capsys, bad))
    assert not out.exists()
    assert not data.exists()  # so that the mended file begins a corpus


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--minutes", "0"], "--minutes 0"),
        (["--minutes", "-3"], "--minutes -3"),
        (["--minutes", "nan"], "--minutes nan"),
        (["--minutes", "inf"], "--minutes inf"),
        (["--minutes", "soon"], "'soon'"),
        (["--steps", "0"], "--steps 0"),
        (["--tokens", "0"], "--tokens 0"),
        (["--device", "nonsense"], "nonsense"),
        (["--dtype", "float9"], "float9"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--nothing"], "--nothing"),
    ],
)
def test_bad_values(
    given: list[str], said: str, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in sentence(capsys, asked(place, "--steps", "1", "--out", str(tmp_path / "out"), *given))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("several", "said"),
    [
        (("eagle9",), "'eagle9' cannot be trained; known: eagle3"),
        (("eagle3(wings=2)",), "no option 'wings'"),
        (("eagle3(unroll=much)",), "unroll of eagle3"),
        (("eagle3(unroll=2.5)",), "unroll of eagle3"),
        (("eagle3(",), "eagle3("),
        (("medusa(heads=0)",), "heads=0"),
        (("eagle3(rate=-1)",), "rate=-1.0 must be from 0 to 1"),
        (("recurrent(matrix_rate=1e9)",), "matrix_rate=1000000000.0 must be from 0 to 1"),
        (("eagle3", "eagle3(unroll=2)"), "two of one kind"),
        ((), "'kinds'"),
    ],
)
def test_bad_kinds(several: tuple[str, ...], said: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in sentence(capsys, asked(place, "--steps", "1", teach=several))


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_places_that_hold_something_else(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models, fresh = listing(place.model), tmp_path / "data"
    (tmp_path / "file").write_text("mine")
    for out, said in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "below", "is a file"),
        (place.model, "already holds a config.json of something else"),
    ):
        assert said in sentence(capsys, asked(place, "--steps", "1", "--out", str(out), data=fresh))
        assert not fresh.exists()  # refused before anything slow
    assert listing(place.model) == models
    assert (tmp_path / "file").read_text() == "mine"


def stopped(place: Place, out: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A state after two of forty steps."""
    with patch.context() as inner:
        inner.setattr(Bars, "steps", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        sentence(capsys, asked(place, "--steps", str(STEPS), "--out", str(out)))
    return out / "state.safetensors"


def test_states_of_another_run(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = stopped(place, tmp_path / "out", monkeypatch, capsys)
    kept = state.read_bytes()
    for kind, seed in ((MEDUSA, "0"), (EAGLE3.replace("unroll=3", "unroll=2"), "0"), (EAGLE3, "1")):
        given = asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "out"), "--seed", seed, teach=(kind,))
        said = sentence(capsys, given)
        assert "holds another run (Eagle3Course(" in said
        assert state.read_bytes() == kept
    said = sentence(capsys, asked(place, "--steps", "1", "--out", str(tmp_path / "out")))
    assert "has 2 steps behind it, more than the 1 asked for" in said
    assert main(asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "out"))) == 0
    assert same(tmp_path / "out", place.whole)


def test_a_run_that_goes_on_is_not_asked_for_other_texts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, other, moved = tmp_path / "out", tmp_path / "other.jsonl", tmp_path / "moved.jsonl"
    other.write_text('{"prompt": "something else"}\n')
    moved.write_bytes(place.prompts.read_bytes())
    state = stopped(place, out, monkeypatch, capsys)
    kept, same_command = state.read_bytes(), asked(place, "--steps", str(STEPS), "--out", str(out))
    for given, said in (
        (["--prompts", str(other)], f"began with other --prompts, and its texts stay as they are, so {other} cannot"),
        (["--tokens", "999"], f"began with {TOKENS} as --tokens, and its texts stay as they are, so 999 cannot"),
    ):
        found = sentence(capsys, [*same_command, *given])
        assert f"{state} {said}" in found
        assert found.endswith(f"leave {given[0]} out to go on, or give another --out and --data")
        assert state.read_bytes() == kept
    assert main([*same_command, "--prompts", str(moved)]) == 0  # the same lines elsewhere are the same prompts
    assert same(out, place.whole)


def test_a_run_that_began_without_prompts_is_not_given_any(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--steps", "6", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data")]
    bare = ["train", EAGLE3, "--model", str(place.model), "--device", "cpu", "--threads", "1", *given]
    with monkeypatch.context() as patch:
        patch.setattr(Bars, "steps", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        sentence(capsys, [*bare, "--tokens", "1"])
    assert "began without --prompts, " in sentence(capsys, [*bare, "--prompts", str(place.prompts)])
    assert main(bare) == 0


@pytest.mark.parametrize("gone", ["folder", "shards"])
def test_texts_that_were_deleted(
    gone: str, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, data = stopped(place, tmp_path / "out", monkeypatch, capsys), tmp_path / "data"
    if gone == "shards":
        data.mkdir()
        (data / "corpus.json").write_bytes((place.data / "corpus.json").read_bytes())
    kept, command = state.read_bytes(), asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "out"), data=data)
    said = sentence(capsys, command)
    assert f"the texts that the run in {state} began with are gone from {data}; bring them back" in said
    assert state.read_bytes() == kept
    assert data.exists() == (gone == "shards")  # no other texts are made in their place
    assert main([*command, "--data", str(place.data)]) == 0
    assert same(tmp_path / "out", place.whole)


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:5],
        lambda _: b"",
        lambda whole: whole.replace(b"curve", b"curse"),
        lambda whole: whole.replace(b"notes", b"nodes"),
    ],
)
def test_states_that_are_damaged(
    damage: Callable[[bytes], bytes],
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = stopped(place, tmp_path / "out", monkeypatch, capsys)
    state.write_bytes(damaged := damage(state.read_bytes()))
    said = sentence(capsys, asked(place, "--steps", str(STEPS), "--out", str(tmp_path / "out")))
    assert said.endswith("delete it to begin anew")
    assert str(state) in said
    assert state.read_bytes() == damaged


def test_a_model_without_a_chat_template(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in place.model.iterdir():
        if path.name != "chat_template.jinja":
            (bare / path.name).write_bytes(path.read_bytes())
    given = [
        *asked(place, "--steps", "1", "--out", str(tmp_path / "out"), data=tmp_path / "data"),
        "--model",
        str(bare),
    ]
    assert "no chat template" in sentence(capsys, given)
    assert not (tmp_path / "out").exists()


# --------------------------------------------------------------------------------- what one sees of it
def test_a_log_tells_how_far_it_is(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sapwood.cli.bars.EVERY_S", 0.0)
    arguments = asked(place, "--steps", "20", "--out", str(tmp_path / "out"), data=tmp_path / "data")
    capsys.readouterr()
    assert main(arguments) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("sapwood: ") for line in lines), lines
    paced = r"[\d,]+ tokens/s, \d+\.\d min left"
    assert any(re.fullmatch(rf"sapwood: texts [\d,]+ of {TOKENS:,}: [\d,]+ tokens, {paced}", line) for line in lines)
    steps = [line for line in lines if line.startswith("sapwood: steps")]
    assert len(steps) == 20
    for number, line in enumerate(steps, 1):
        assert re.fullmatch(rf"sapwood: steps {number} of 20: loss [\d.]+, right( [\d.]+)+, {paced}", line), line


def test_slow_steps_are_told_between_points(place: Place, tmp_path: Path) -> None:
    texts, teacher = Corpus.open(place.data), Teacher(load(str(place.model), device="cpu")[0])
    ticks, told = count(), list[tuple[int, int]]()
    settings = LoopSettings(steps=200, tokens=256, log=10, tell=3.0)

    def tell(notes: loop.Notes) -> None:
        told.append((notes.step, notes.curve[-1].step))

    made = loop.Loop(kinds.course(MEDUSA), teacher, texts, settings, tmp_path / "state", tell, now=lambda: next(ticks))
    notes = made.run()[1]
    assert [point.step for point in notes.curve] == list(range(10, 201, 10))
    assert all(step == newest for step, newest in told)
    assert len(told) > 2 * len(notes.curve)


def test_help_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    said = capsys.readouterr().out
    for option in ("minutes", "steps", "prompts", "tokens", "data", "out", "seed", "device", "dtype", "threads"):
        assert f"--{option}" in said
    assert "eagle3" in said
