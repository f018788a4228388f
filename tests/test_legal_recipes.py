"""The combinations that can be built are those that docs/soundness.md allows, written out by hand.

Rule 1: which draws a verifier may judge. Rule 2: a policy that cuts single nodes by their own token
needs draws that were chosen, or a verifier that does not read q.
"""

from sapwood.core.types import Draw
from tests.helpers.legal_recipes import LEGAL, combinations
from tests.helpers.part_factory import lossless_names, plain_names

TOPK, IID, SWOR, MIXED = Draw.TOPK, Draw.IID, Draw.SWOR, Draw.MIXED

# never read q: how siblings came about is nothing to them
UNCONCERNED = {"match", "naive"}
# divide by q: each has the residual of the draws it names; a chosen token is a draw from a one-hot q
JUDGES = {
    "speculative": {IID, SWOR},  # the first draw alone, which both make alike
    "block": {IID, SWOR},  # first draws alone
    "mss": {IID},
    "kseq": {IID},
    "khisti": {IID},
    "optimal-iid": {IID},
    "traversal-iid": {IID},
    "rrs": {SWOR},
    "spechub": {MIXED},  # one chosen hub and one draw
    "mixed": {TOPK, SWOR, MIXED},
    "optimal": {TOPK, SWOR, MIXED},
    "traversal": {TOPK, SWOR, MIXED},
}
# keep the likeliest nodes of a tree, siblings apart
CUT_NODES = {
    "beam",
    "beam-path",
    "causal-path",
    "radar",
    "best",
    "opt-tree",
    "specexec",
    "ddd",
    "cast",
    "dsbd",
    "pipedec",
}
# grow, stop or keep whole groups of siblings
CUT_GROUPS = {
    "chain",
    "pearl",
    "amusd",
    "pipeinfer",
    "ppsd",
    "predictive",
    "specbranch",
    "static",
    "cape",
    "prompt-tree",
    "groups",
    "rank-paths",
    "dyspec",
    "sequoia",
    "rsd",
    "thompson",
    "tapout",
    "tapout-token",
    "swift",
    "draft-verify",
    "max-confidence",
    "svip-difference",
    "logit-margin",
    "adaedl",
    "svip",
    "hf-dynamic",
    "cm-asd",
    "adasd-stop",
    "fallback",
    "keep-all",
}


def by_hand() -> set[tuple[Draw, str, str]]:
    free = {
        (draws, policy, verifier)
        for draws in (TOPK, IID, SWOR, MIXED)
        for policy in CUT_NODES | CUT_GROUPS
        for verifier in UNCONCERNED
    }
    groups = {
        (draws, policy, verifier)
        for verifier, judged in JUDGES.items()
        for draws in judged
        for policy in CUT_GROUPS
    }
    nodes = {
        (TOPK, policy, verifier)
        for verifier, judged in JUDGES.items()
        if TOPK in judged
        for policy in CUT_NODES
    }
    return free | groups | nodes


def test_every_part_is_in_the_tables() -> None:
    assert set(plain_names("policy")) == CUT_NODES | CUT_GROUPS
    assert set(lossless_names()) == UNCONCERNED | JUDGES.keys() | {"greedy"}


def test_what_can_be_built_is_what_is_sound() -> None:
    assert set(LEGAL) == by_hand()
    assert len(LEGAL) == len(set(LEGAL)) < len(list(combinations()))
