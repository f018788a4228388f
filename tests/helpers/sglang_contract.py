"""Facts of an installed SGLang that the plug-in builds on; printed as JSON by `python -m`.

SGLang's kernels do not load on every machine, so the worker's module is read as source, and its
decoder of tree links is run on its own.
"""

import ast
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from sapwood.core.tree import Tree
from sapwood.guest.sglang import NAME, encode


def worker_source() -> ast.Module:
    """The source of SGLang's n-gram worker."""
    import sglang

    path = Path(sglang.__path__[0]) / "srt" / "speculative" / "ngram_worker.py"
    return ast.parse(path.read_text())


def arguments(source: ast.Module) -> dict[str, list[str]]:
    """Names of the arguments of the worker's methods."""
    [worker] = [
        node
        for node in source.body
        if isinstance(node, ast.ClassDef) and node.name == "NGRAMWorker"
    ]
    return {
        node.name: [argument.arg for argument in node.args.args]
        for node in worker.body
        if isinstance(node, ast.FunctionDef)
    }


def random_tree(nodes: int, seed: int) -> Tree:
    """A tree of any shape, made without packages that the environment may lack."""
    draw = np.random.default_rng(seed)
    tree = Tree(5)
    while len(tree) < nodes:
        tree.add(int(draw.integers(len(tree))), int(draw.integers(60)), 0.5)
    return tree


def links(source: ast.Module) -> bool:
    """True when SGLang's decoder reads from our masks the links of our trees."""
    import torch

    [function] = [
        node
        for node in source.body
        if isinstance(node, ast.FunctionDef) and node.name == "_derive_tree_links"
    ]
    scope: dict[str, Any] = {"np": np, "torch": torch}
    exec(compile(ast.Module([function], []), "ngram_worker.py", "exec"), scope)
    trees = [random_tree(1 + seed % 12, seed) for seed in range(40)]
    masks = np.stack([encode(tree, 12)[1] for tree in trees])
    children, siblings = scope["_derive_tree_links"](masks.reshape(-1), len(trees), 12)
    for tree, child, sibling in zip(trees, children.tolist(), siblings.tolist(), strict=True):
        for node in range(12):
            if node >= len(tree):
                if (child[node], sibling[node]) != (-1, -1):
                    return False
                continue
            own = tree.children(node)
            beside = [] if not node else tree.children(int(tree.parents[node]))
            later = [other for other in beside if other > node]
            if (child[node], sibling[node]) != (own[0] if own else -1, later[0] if later else -1):
                return False
    return True


def facts() -> dict[str, Any]:
    """All facts."""
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    from sapwood.guest import sglang as plugin

    load_plugins()
    by_entry_point = get_spec(NAME) is not None
    plugin.register()
    plugin.register()
    made: Any = SpeculativeAlgorithm.from_string(NAME.lower())
    public = [
        name
        for name, value in vars(SpeculativeAlgorithm).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]
    source = worker_source()
    return {
        "by_entry_point": by_entry_point,
        "missing": sorted(name for name in public if name not in dir(made)),
        "is_ngram": made.is_ngram(),
        "has_draft_kv": made.has_draft_kv(),
        "overlap": made.supports_overlap,
        "arguments": arguments(source),
        "names": sorted(
            {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}
            & {"origin_input_ids_unpadded", "output_ids", "accept_tokens", "accept_lens"}
        ),
        "corpus_calls": sorted(
            {
                node.attr
                for node in ast.walk(source)
                if isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "ngram_corpus"
            }
        ),
        "links": links(source),
    }


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(facts()) + "\n")
