"""The report as an HTML page: one file, no network, charts as SVG."""
