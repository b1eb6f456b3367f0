"""`frog demo`: play a session's demonstrations step by step on real runs."""
