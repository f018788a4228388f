"""Ways of training a draft model, at equal steps from the same start.

    python benchmarks/distillation.py --data FOLDER [--model tiny] [--only WAY ...] [--json FILE]

The target writes a small corpus of its own; the last quarter of its texts is held out. Every way of
training goes on from the draft model that ships for the model, for the same number of steps over
the same batches. `--model tiny` is a random Llama of three layers, whose draft model is first
trained by cross entropy for as many steps. Before and after, the held-out texts are replayed:
`tokens_per_pass` of a greedy chain of five (the draft's first choices along the target's text, and
the token that a pass adds), and `accepted`, the chance that a token drawn from the draft passes
speculative sampling, the mean of sum min(p, q). With `--only`, rows of other ways in FILE are kept.
So few steps on so little text compare directions, not final quality.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from sapwood.backends.torch.backend import TorchBackend
from sapwood.backends.torch.load import load
from sapwood.bench import provenance
from sapwood.common.drafter_store import find
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train import corpus as corpora
from sapwood.train.batches import TrainBatch, gather
from sapwood.train.corpus import Corpus
from sapwood.train.loop import LoopSettings, TrainingLoop
from sapwood.train.registry import objective
from sapwood.train.shards import DataSettings
from sapwood.train.student_texts import draw
from sapwood.train.teacher import Teacher

DEPTH = 5  # tokens of a chain
RATES = "rate=0.001, matrix_rate=0.002"  # half the usual: the model is trained already
WAYS = {
    "fkl": f"draft-model(start=START, hard=0.0, {RATES})",
    "rkl": f"draft-model(start=START, hard=0.0, divergence=rkl, {RATES})",
    "jsd": f"draft-model(start=START, hard=0.0, divergence=jsd, {RATES})",
    "tvd": f"draft-model(start=START, hard=0.0, divergence=tvd, {RATES})",
    "distillspec": f"distillspec(start=START, {RATES})",
    "distillspec, tvd": f"distillspec(start=START, divergence=tvd, {RATES})",
    "skd": f"skd(start=START, {RATES})",
    "fastdraft": f"fastdraft(start=START, {RATES})",
}


def parts_of(texts: Corpus) -> tuple[Corpus, list[int]]:
    """The texts to learn from, and the numbers of those that are held out."""
    count = len(texts) - max(1, len(texts) // 4)
    end = int(texts.starts[count])
    first = Corpus(texts.tokens[:end], texts.starts[: count + 1], texts.answers[:count])
    return first, list(range(count, len(texts)))


@torch.no_grad()
def replayed(student: Any, teacher: Teacher, texts: Corpus, held: list[int]) -> dict[str, float]:
    """Tokens per pass and acceptance on held-out texts."""
    accepted: list[Tensor] = []
    tokens = passes = 0
    for text in held:
        rows, lengths, answers = gather(texts, np.array([text]), 10**6)
        batch = TrainBatch(rows, lengths, answers, *teacher.read(rows, ()))
        _, places = batch.labelled_places()
        p = teacher.target_probs(batch.final[0, places])
        q = (student(rows)[0, places] @ student.output.t()).float().softmax(-1)
        accepted.append(torch.minimum(p, q).sum(-1))
        right = (q.argmax(-1) == rows[0, places + 1]).tolist()
        place = 0
        while place < len(right):
            taken = 0
            while taken < DEPTH and place + taken < len(right) and right[place + taken]:
                taken += 1
            place += taken + 1
            passes += 1
        tokens += len(right)
    return {
        "tokens_per_pass": round(tokens / passes, 4),
        "accepted": round(float(torch.cat(accepted).mean()), 4),
    }


def trained(spelling: str, teacher: Teacher, texts: Corpus, args: argparse.Namespace) -> Any:
    """Train one way; the student, and the seconds that it took."""
    settings = LoopSettings(steps=args.steps, tokens=args.batch, save=1e9, seed=0)
    state = args.data / "state.safetensors"
    state.unlink(missing_ok=True)
    began = time.monotonic()
    student, _ = TrainingLoop(objective(spelling), teacher, texts, settings, state).run()
    state.unlink(missing_ok=True)
    return student, time.monotonic() - began


def tiny() -> TorchBackend:
    """A random Llama, its output head scaled until it prefers a few tokens."""
    torch.manual_seed(0)
    made: Any = LlamaForCausalLM
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        eos_token_id=None,
    )
    model = made(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:  # the last token says most of the next one
            layer.self_attn.o_proj.weight.mul_(0.3)
            layer.mlp.down_proj.weight.mul_(0.3)
        model.get_input_embeddings().weight.normal_()
        model.get_output_embeddings().weight.normal_(std=0.5)
    return TorchBackend(model, "tiny")


@torch.no_grad()
def tiny_texts(teacher: Teacher, count: int) -> Corpus:
    """Random prompts of six tokens, and answers of thirty that the target drew at temperature 1."""
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, teacher.vocab, (count, 6), generator=source)
    for _ in range(30):
        logits = teacher.read(tokens, ())[1][:, -1] @ teacher.head.t()
        tokens = torch.cat((tokens, draw(logits, 1.0, 1.0, source)[:, None]), 1)
    flat = tokens.numpy().astype(np.int32)
    starts = np.arange(count + 1) * flat.shape[1]
    return Corpus(flat.ravel(), starts, np.full(count, 6, np.int32))


def tiny_start(teacher: Teacher, texts: Corpus, args: argparse.Namespace) -> Path:
    """A draft model of the tiny target, trained by cross entropy for as many steps."""
    folder: Path = args.data / "start"
    if not folder.exists():
        student, _ = trained(
            "draft-model(width=32, heads=2, inner=64, tie=false, rate=0.01, matrix_rate=0.02)",
            teacher,
            texts,
            args,
        )
        student.save(folder)
    return folder


def described(
    args: argparse.Namespace,
    teacher: Teacher,
    texts: Corpus,
    whole: Corpus,
    held: list[int],
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    """The record: what was run where, and its rows."""
    return {
        "command": f"python benchmarks/distillation.py --data FOLDER --model {args.model} "
        f"--steps {args.steps} --tokens {args.tokens} --batch {args.batch} --json {args.json}",
        "commit": provenance.commit(),
        "machine": provenance.machine(teacher.backend.info, None),
        "target": args.model,
        "steps": args.steps,
        "texts": len(texts),
        "held_out": len(held),
        "held_out_tokens": int(sum(whole.lengths[text] - whole.answers[text] for text in held)),
        "rows": rows,
    }


def main() -> int:
    """Train every way, replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--only", nargs="*", default=list(WAYS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    if args.model == "tiny":
        teacher = Teacher(tiny())
        whole = tiny_texts(teacher, 480)
        texts, held = parts_of(whole)
        start = tiny_start(teacher, texts, args)
    else:
        backend, folder = load(args.model, device="cpu", dtype="float32", stock=True)
        teacher = Teacher(backend)
        settings = DataSettings(size=16, new=96, turn=48, long=0.0, derived=0.0, greedy=1.0)
        words = Tokenizer.load(folder)
        whole = corpora.make(backend, words, args.data, tokens=args.tokens, settings=settings)
        texts, held = parts_of(whole)
        start = find("draft-model", args.model, backend.info.weights)
    kept = json.loads(args.json.read_text())["rows"] if args.json and args.json.exists() else []
    rows = {row["way"]: row for row in kept}
    made: Any = objective(f"draft-model(start={str(start)!r})")
    first = made.build(teacher, texts.counts(teacher.vocab)).eval()
    rows["before"] = {"way": "before", **replayed(first, teacher, whole, held)}
    for way in args.only:
        spelling = WAYS[way].replace("START", repr(str(start)))
        student, seconds = trained(spelling, teacher, texts, args)
        found = replayed(student, teacher, whole, held)
        rows[way] = {
            "way": way,
            "spelling": WAYS[way],
            "seconds": round(seconds, 1),
            **found,
        }
        print(rows[way], flush=True)
        if args.json:
            record = described(args, teacher, texts, whole, held, list(rows.values()))
            args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
