"""Small tools that several packages share: bandits, calibration, caches, tree pictures."""
