"""`frog quiz`: questions drawn from each lab's pool by a seed; a wrong answer gets its likely misconception."""
