"""The report as a page: one file, no network, charts drawn here."""
