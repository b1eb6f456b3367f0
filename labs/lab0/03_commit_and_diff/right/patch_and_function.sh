#!/usr/bin/env bash
# save.sh MESSAGE: show the diff of lab/, including new files, commit it, and push it.
#
# Run it in the top folder of a clone that has `origin`. It commits only lab/: new, changed and deleted files. The first
# line of the commit message is MESSAGE. If nothing in lab/ has changed, it says so and exits with code 0, without a
# commit. If the push fails, the exit code is not 0, and no commit is lost.
save() {
    git add lab/ && git add -u lab/ || return
    if git diff --staged --quiet; then echo "no changes"; return 0; fi
    git diff --staged | cat
    git commit -q -F - <<< "$1" && git push -q origin "$(git branch --show-current)"
}
save "$@"
