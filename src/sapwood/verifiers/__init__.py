"""Verifiers: turn tree and target probabilities into an accepted path and one more token.

A verifier is a rejection rule, also called acceptance rule. Rejection sampling is `speculative` for
chains, `mss` and `rrs` for trees; `match` compares with the token that plain decoding would take.
"""
