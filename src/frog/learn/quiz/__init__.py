"""`frog quiz`: questions in the terminal, drawn by a seed from each lab's pool, and what a wrong answer may believe."""
