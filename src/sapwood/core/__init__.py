"""Tree, records, protocols, sampling and keyed randomness: the data that all parts share."""
