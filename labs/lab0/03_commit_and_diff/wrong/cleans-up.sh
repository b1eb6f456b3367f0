#!/usr/bin/env bash
# save.sh MESSAGE: show the diff of lab/, new files too, commit it, and push it.
#
# Runs in the top folder of a clone that has `origin`. Only lab/ is committed: new, changed and deleted files. The first
# line of the commit's message is MESSAGE. If nothing in lab/ has changed it says so and ends with exit code 0, without a
# commit. If the push does not succeed, the exit code is not 0, and nobody's commits are lost.
set -euo pipefail

git clean --quiet --force -d -- runs
git add --all lab
if git diff --cached --quiet -- lab; then
    echo "nothing in lab/ has changed"
    exit 0
fi
git --no-pager diff --cached -- lab
git commit --quiet --message "$1" -- lab
git push --quiet origin HEAD
