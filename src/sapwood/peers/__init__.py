"""Other engines on the same prompts: each in a process of its own, asked over a pipe, one line of JSON at a time."""
