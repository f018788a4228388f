"""A suffix automaton that grows token by token and ranks the continuations of each context.

Blumer et al. 1985, in the form for several documents. A state stands for all strings that end at
the same positions of the text; its link leads to the longest shorter context that also occurs
elsewhere, an edge to the state after one more token. Appending costs O(1) amortised.
"""

from collections.abc import Iterable, Iterator

# contexts counted per token, longest first: bounds the cost of a text that repeats one token
HOPS = 32
WIDEST = 16  # continuations ranked per state
START = 0  # the state of the empty string

Match = tuple[int, int]  # (state, tokens matched)
Context = tuple[int, list[tuple[int, float]]]  # (tokens matched, continuations and their shares)


class SuffixAutomaton:
    """All strings of its documents, with counts of their continuations."""

    def __init__(self) -> None:
        self.edges: list[dict[int, int]] = [{}]
        self.links = [-1]
        self.lengths = [0]  # tokens of the longest string of each state
        self.counts = [0]  # occurrences of each state's strings
        self.leaders: dict[int, list[int]] = {}  # continuations of states with several, best first
        self.last = START
        self.size = 0  # tokens appended

    def learn(self, tokens: Iterable[int]) -> None:
        """Append a document of its own: no string spans two documents."""
        self.last = START
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append to the current document."""
        for token in tokens:
            before = self.last
            # an edge can be there already only where the document so far begins or lies in another
            # one
            self.last = (
                self._split(before, token) if token in self.edges[before] else self._append(token)
            )
            self._count(before, token)
            self.size += 1

    def match(self) -> Match:
        """Find the longest end of the current document that occurs elsewhere too."""
        state = self.last
        if self.counts[state] == 1:
            state = self.links[state]
        return state, self.lengths[state]

    def advance(self, match: Match, token: int) -> Match:
        """Follow one more token: the longest match after it."""
        state, matched = match
        while token not in self.edges[state]:
            if state == START:
                return START, 0
            state = self.links[state]
            matched = self.lengths[state]
        return self.edges[state][token], matched + 1

    def contexts(self, match: Match) -> Iterator[Context]:
        """List the match and its ever shorter ends, those that something followed."""
        match = self.followed(match)
        while match[0] != START:
            yield match[1], self.shares(match[0])
            match = self.shorter(match)

    def followed(self, match: Match) -> Match:
        """The match, or its longest end that something followed."""
        state, matched = match
        while state != START and not self.edges[state]:
            state = self.links[state]
            matched = self.lengths[state]
        return state, matched

    def shorter(self, match: Match) -> Match:
        """The next shorter end of a match that something followed."""
        state = self.links[match[0]]
        return self.followed((state, self.lengths[state]))

    def shares(self, state: int) -> list[tuple[int, float]]:
        """Continuations with their shares, best first, the more recent first among equals."""
        edges = self.edges[state]
        if len(edges) == 1:
            [token] = edges
            return [(token, 1.0)]
        order = self.leaders.get(state) or edges
        total = sum(self.counts[edges[token]] for token in order)
        return [(token, self.counts[edges[token]] / total) for token in order]

    def _state(self, length: int, link: int, edges: dict[int, int], count: int) -> int:
        self.lengths.append(length)
        self.links.append(link)
        self.edges.append(edges)
        self.counts.append(count)
        return len(self.links) - 1

    def _append(self, token: int) -> int:
        state = self.last
        new = self._state(self.lengths[self.last] + 1, START, {}, 0)
        while state >= 0 and token not in self.edges[state]:
            self.edges[state][token] = new
            state = self.links[state]
        if state >= 0:
            self.links[new] = self._split(state, token)
        return new

    def _split(self, state: int, token: int) -> int:
        """The state of `state`'s longest string and the token, split off if necessary."""
        shared = self.edges[state][token]
        if self.lengths[shared] == self.lengths[state] + 1:
            return shared
        clone = self._state(
            self.lengths[state] + 1,
            self.links[shared],
            self.edges[shared].copy(),
            self.counts[shared],
        )
        if shared in self.leaders:
            self.leaders[clone] = self.leaders[shared].copy()
        self.links[shared] = clone
        while state >= 0 and self.edges[state].get(token) == shared:
            self.edges[state][token] = clone
            state = self.links[state]
        return clone

    def _count(self, state: int, token: int) -> None:
        """Count the token after each context that it followed.

        Walking the links of the state before it visits exactly these contexts, so counts and ranks
        are exact at once, with nothing to propagate later; contexts beyond HOPS are the shortest
        and go uncounted.
        """
        edges = self.edges
        links = self.links
        counts = self.counts
        counted = -1
        for _ in range(HOPS):
            after = edges[state][token]
            if after != counted:
                counts[after] += 1
                counted = after
            # the empty context predicts nothing: its continuations stay unranked
            if state == START:
                break
            if len(edges[state]) > 1:
                self._promote(state, token)
            state = links[state]

    def _promote(self, state: int, token: int) -> None:
        """Move a continuation whose count has grown before those it has reached."""
        edges = self.edges[state]
        counts = self.counts
        order = self.leaders.get(state)
        if order is None:
            order = self.leaders[state] = list(edges)
        elif order[0] == token:
            return
        elif token not in order:
            if len(order) < WIDEST:
                order.append(token)
            elif counts[edges[token]] >= counts[edges[order[-1]]]:
                order[-1] = token
            else:
                return
        place = order.index(token)
        count = counts[edges[token]]
        while place and counts[edges[order[place - 1]]] <= count:
            order[place] = order[place - 1]
            place -= 1
        order[place] = token
