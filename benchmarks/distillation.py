"""Ways of training a draft model, at equal steps from the same start.

    python benchmarks/distillation.py --data FOLDER --steps N [--only KIND ...] [--json FILE]

The target writes a small corpus of its own; the last quarter of its texts is held out. Every way of
training goes on from the draft model that ships for the model, for the same number of steps over
the same batches. Before and after, the held-out texts are replayed: `tokens_per_pass` of a greedy
chain of five (the draft's first choices along the target's text, and the token that a pass adds),
and `accepted`, the chance that a token drawn from the draft passes speculative sampling, the mean
of sum min(p, q). With `--only`, rows of other ways in FILE are kept. So few steps on so little text
compare directions, not final quality.
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
from sapwood.train.teacher import Teacher

DEPTH = 5  # tokens of a chain
RATES = "rate=0.0005, matrix_rate=0.001"  # a quarter of the usual: the model is trained already
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


def main() -> int:
    """Train every way, replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=6000)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--only", nargs="*", default=list(WAYS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    backend, folder = load(args.model, device="cpu", dtype="float32", stock=True)
    settings = DataSettings(size=16, new=96, turn=48, long=0.0, derived=0.0, greedy=1.0)
    whole = corpora.make(
        backend, Tokenizer.load(folder), args.data, tokens=args.tokens, settings=settings
    )
    texts, held = parts_of(whole)
    teacher = Teacher(backend)
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
    record = {
        "command": f"python benchmarks/distillation.py --data FOLDER --steps {args.steps} "
        f"--tokens {args.tokens} --batch {args.batch} --json {args.json}",
        "commit": provenance.commit(),
        "machine": provenance.machine(backend.info, None),
        "target": args.model,
        "steps": args.steps,
        "texts": len(texts),
        "held_out": len(held),
        "held_out_tokens": int(sum(whole.lengths[text] - whole.answers[text] for text in held)),
        "rows": list(rows.values()),
    }
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
