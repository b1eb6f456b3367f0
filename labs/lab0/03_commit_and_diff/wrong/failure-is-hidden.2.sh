#!/usr/bin/env bash
# save.sh MESSAGE: show the diff of lab/, including new files, commit it, and push it.
#
# Run it in the top folder of a clone that has `origin`. It commits only lab/: new, changed and deleted files. The first
# line of the commit message is MESSAGE. If nothing in lab/ has changed, it says so and exits with code 0, without a
# commit. If the push fails, the exit code is not 0, and no commit is lost.

git add --all lab
if git diff --cached --quiet -- lab; then
    echo "nothing in lab/ has changed"
    exit 0
fi
git --no-pager diff --cached -- lab
git commit --quiet --message "$1" -- lab
git push --quiet origin HEAD
echo saved
