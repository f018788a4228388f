"""Tables of the records of models of one's own: without a head, in four bits, and their memory.

`tools/benchmarks.py` puts them into the page of benchmarks.
"""

from collections.abc import Iterator, Mapping

from tools.evidence import RESULTS, Record, markdown, titled

OWN_MODEL = "own-model.json"
FOUR_BITS = "four-bits.json"
FOUR_BITS_AVX2 = "four-bits-avx2.json"
MEMORY = "memory.json"


# ------------------------------------------------------------------------------ groups and loads
def own_model_table(record: Record) -> str:
    """`auto` against plain decoding by group of prompts or load, a column for each model."""
    parts = {thing: tuple(thing.split(": ", 1)) for thing in record["rows"]}
    models = list(dict.fromkeys(model for model, _ in parts.values()))
    groups = list(dict.fromkeys(group for _, group in parts.values()))
    rows = []
    for group in groups:
        cells = []
        for model in models:
            row = record["rows"].get(f"{model}: {group}")
            speed = None if row is None else row["speedup"]
            cells.append(
                "" if speed is None
                else f"{speed['mean']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})"
            )  # fmt: skip
        rows.append([group, *cells])
    return markdown(["prompts", *models], rows)


def own_model_section(record: Record) -> Iterator[str]:
    """`auto` on models without a head, for the page of benchmarks."""
    told = record["predicted"]
    machine = record["machine"]
    again = [row["plain against itself"] for row in record["rows"].values()]
    text = (
        "`auto`, or a recipe with a fixed tree where it is named, against plain decoding of the "
        "same loaded model, without a trained head unless said. Steps of the recipes take turns. "
        "Medians of the ratios of single prompts, or of stretches of decoding so many requests at "
        "once, with 95 % bootstrap intervals; steps with prefill are not timed. The ratio of every "
        "other step of plain decoding to the steps between, which noise alone makes, is "
        f"{min(again):.2f} to {max(again):.2f} by group. A speedup was printed for "
        f"{told['printed']} of {told['prompts']} answers and was off by {told['mean error']:.0%} "
        f"on average. {machine['cpu']}, {machine['threads']} threads, commit {record['commit']}. "
        f"File: [{OWN_MODEL}](../{RESULTS}/{OWN_MODEL})."
    )
    yield titled("Models without a head", text, own_model_table(record), record, OWN_MODEL)


# ------------------------------------------------------------------------------------- four bits
FOUR_BIT_RATIOS = (
    "int4 over int8",
    "plain over llama.cpp",
    "auto over llama.cpp",
    "auto over plain",
    "auto with head over llama.cpp",
    "auto with head over plain",
)


def four_bits_gain(record: Record) -> str:
    """Speedups of `auto` over plain decoding in int4."""
    gains = [row["auto over plain"]["mean"] for row in record["files"].values()]
    return f"{min(gains):.2f} to {max(gains):.2f} in int4"


def interval_of(speed: Mapping[str, float] | None) -> str:
    """A ratio with its interval; empty without one."""
    return (
        "" if speed is None else f"{speed['mean']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})"
    )


def four_bits_section(record: Record, name: str = FOUR_BITS) -> Iterator[str]:
    """4-bit files in int4, in int8 and in llama.cpp, for the page of benchmarks."""
    avx2 = name == FOUR_BITS_AVX2
    rows = [
        [
            file,
            f"{found['ms per token']['int4 plain']:.2f}",
            *(interval_of(found.get(name)) for name in FOUR_BIT_RATIOS),
        ]
        for file, found in record["files"].items()
    ]
    settings, machine = record["settings"], record["machine"]
    text = (
        "GGUF files with 4-bit weights, one request, greedy, prompts of Spec-Bench: plain "
        "decoding with the file as it is (ms per token), against int8 and against llama.cpp on "
        "the same file, and `auto`, with trained heads hidden and, where the weights have one, "
        "with it. "
        + ("Our kernels as on a processor with AVX2 alone, llama.cpp built for it. " * avx2)
        + "Engines in processes of "
        f"their own take turns of {settings['turn']} tokens; ratios of tokens per second with "
        "95 % bootstrap intervals over rounds of turns, of medians between plain engines and of "
        f"means with `auto`. {machine['cpu']}, {settings['threads']} threads, commit "
        f"{record['commit']}. File: [{name}](../{RESULTS}/{name})."
    )
    heads = ["file", "plain, ms", *FOUR_BIT_RATIOS]
    title = "Four bits without AVX-512" if avx2 else "Four bits on a CPU"
    yield titled(title, text, markdown(heads, rows), record, name)


# ---------------------------------------------------------------------------------------- memory
def memory_section(record: Record) -> Iterator[str]:
    """What a file takes on the disk and in memory, for the page of benchmarks."""
    rows = []
    for file, found in record["files"].items():
        size = found["file bytes"]
        memory, words, headed = (
            found[name] for name in ("memory bytes", "tokenizer bytes", "with head bytes")
        )
        rows.append(
            [
                file,
                f"{size / 2**20:.0f}",
                f"{found['dtype']}: {found['note']}" if found["note"] else found["dtype"],
                f"{found['disk bytes'] / size:.2f}",
                f"{(memory - words) / size:.2f}",
                f"{words / 2**20:.0f}",
                "" if headed is None else f"{(headed - words) / size:.2f}",
                *(f"{found[name]:.1f}" for name in ("first start", "second start")),
            ]
        )
    machine = record["machine"]
    text = (
        "GGUF files by default and in int8. **disk**: files that a first run leaves beside the "
        "model's own, over its size. **memory**: what a process grows by when it loads the model "
        "once more and answers, over the file's size, trained heads hidden or in use: weights, "
        "keys and values of a short text and what `auto` needs to draft. The tokenizer's memory "
        "is beside it, as it follows the vocabulary; libraries and compiled code, which a process "
        "has once, are left out. **starts**: seconds from the start of a process to the first "
        "token, at first and again, kernels compiled. "
        f"{machine['cpu']}, {machine['threads']} threads, commit {record['commit']}. "
        f"File: [{MEMORY}](../{RESULTS}/{MEMORY})."
    )
    heads = ["file", "MiB", "runs in", "disk", "memory", "tokenizer, MiB", "memory with head"]
    heads += ["first start, s", "second start, s"]
    yield titled("Memory on a CPU", text, markdown(heads, rows), record, MEMORY)
