#!/bin/bash
# Make .venv here, from the wheels of this folder alone. It needs no network, and can be run again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

PYTHON=${PYTHON:-python3}
NEEDED=@PYTHON@
# What a module or the user has installed elsewhere must not pass for what is in the wheels.
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1

fail() {
  echo "setup.sh: $1" >&2
  echo "  try: $2" >&2
  exit 1
}

found=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') ||
  fail "$PYTHON does not run" "PYTHON=/path/to/python$NEEDED ./setup.sh"
[[ $found == "$NEEDED" ]] ||
  fail "$PYTHON is Python $found; the wheels are for $NEEDED" "PYTHON=/path/to/python$NEEDED ./setup.sh"
sha256sum --check --quiet SHA256SUMS || fail "this bundle is incomplete" "copy it again"

# Half an environment must not look like a whole one.
trap 'rm -rf .venv' ERR INT TERM
rm -rf .venv
"$PYTHON" -m venv .venv
# No index, and none of the settings that a user or a site may have: --isolated leaves PIP_* and the user's file aside,
# /dev/null the site's.
PIP_CONFIG_FILE=/dev/null .venv/bin/python -m pip --isolated --disable-pip-version-check \
  install --quiet --no-cache-dir --no-index --find-links wheels '@WANTED@'
.venv/bin/python -c 'import frog; print("frog", frog.__version__, "is in .venv")'
echo "next: sbatch job.sbatch"
