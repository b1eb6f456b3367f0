"""`frog class`: one page from many learners' exports, each checked against its journal."""
