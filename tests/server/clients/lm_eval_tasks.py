"""Two tasks of `lm-eval` through a server and through transformers, which must score alike.

    python lm_eval_tasks.py URL MODEL KEY FOLDER PACKAGES

FOLDER is the model that is served, PACKAGES the site-packages of an environment with torch and transformers.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

url, model, key, folder, packages = sys.argv[1:]
os.environ |= {"OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
sys.path.append(packages)  # behind our own packages

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

TASKS = ("tiny_choice", "tiny_words")
CHOICE = """task: tiny_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
WORDS = """task: tiny_words
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list:
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
"""
SUBJECTS = ("A tree", "The river", "Old wood", "My dog", "Rain", "The cook")
VERBS = (" grows", " runs", " sings", " burns")


def write_tasks(home: Path) -> None:
    """Tasks and their data, made here."""
    lines = [
        {
            "question": f"{subject}{verb}",
            "choices": [" slowly", " fast", " at night"],
            "answer": place % 3,
        }
        for place, (subject, verb) in enumerate((s, v) for s in SUBJECTS for v in VERBS)
    ]
    data = home / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)))
    for name, text in (("choice", CHOICE), ("words", WORDS)):
        (home / f"{name}.yaml").write_text(text.replace("DATA", str(data)))


def scores(home: Path, name: str, **arguments: Any) -> Any:
    """Results and samples of both tasks."""
    found = lm_eval.simple_evaluate(
        model=name,
        model_args=arguments,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(home), include_defaults=False),
        batch_size=1,
        bootstrap_iters=0,
    )
    samples = {
        task: sorted((one["doc_id"], one["filtered_resps"]) for one in found["samples"][task])
        for task in TASKS
    }
    return {task: found["results"][task] for task in TASKS}, samples


def flat(value: Any) -> list[float]:
    """All numbers inside a value."""
    if isinstance(value, str | bool):
        return [float(value == "True")] if isinstance(value, str) else [float(value)]
    return (
        [value] if isinstance(value, int | float) else [one for part in value for one in flat(part)]
    )


with tempfile.TemporaryDirectory() as made:
    write_tasks(Path(made))
    served, served_samples = scores(
        Path(made),
        "local-completions",
        base_url=f"{url}/completions",
        model=model,
        tokenizer=folder,
        tokenizer_backend="huggingface",
        tokenized_requests=True,
        max_length=512,
        max_retries=1,
    )
    own, own_samples = scores(
        Path(made), "hf", pretrained=folder, dtype="float32", device="cpu", max_length=512
    )
for task in TASKS:
    ours, theirs = flat(served_samples[task]), flat(own_samples[task])
    assert len(ours) == len(theirs) >= len(SUBJECTS) * len(VERBS)
    worst = max(
        abs(one - other) / max(1, abs(other)) for one, other in zip(ours, theirs, strict=True)
    )
    assert worst < 1e-4, (task, worst)
    print("ok", task, served[task], own[task], f"largest relative difference {worst:.1e}")
assert served["tiny_choice"]["acc,none"] == own["tiny_choice"]["acc,none"]
