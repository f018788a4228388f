"""Other engines for `bench --peers`, each in a process of its own."""
