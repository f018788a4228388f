"""Controllers: set the budget of nodes, depth and width for the next round."""
