#!/usr/bin/env bash
# save.sh MESSAGE: show the diff of lab/, new files too, commit it, and push it.
#
# Runs in the top folder of a clone that has `origin`. Only lab/ is committed: new, changed and deleted files. The first
# line of the commit's message is MESSAGE. If nothing in lab/ has changed it says so and ends with exit code 0, without a
# commit. If the push does not succeed, the exit code is not 0, and nobody's commits are lost.
save() {
    git add lab/ && git add -u lab/ || return
    if git diff --staged --quiet; then echo "no changes"; return 0; fi
    git diff --staged | cat
    git commit -q -F - <<< "$1" && git push -q origin "$(git branch --show-current)"
}
save "$@"
