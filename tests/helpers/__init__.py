"""What tests share: the real programs that they start, the layouts and models of users, and readers."""
