#!/usr/bin/env bash
# Installs the last commit of this checkout on every worker; again after each new commit, which takes seconds.
#   usage: TPU_NAME=art TPU_ZONE=us-west4-a tpu/setup.sh [--dry-run] [--help]
set -euo pipefail
source "$(dirname "$0")/env.sh"
no_arguments

cd "$(dirname "$0")/.."
if [[ $DRY_RUN == 0 ]] && ! git diff --quiet HEAD; then
  echo "note: only what is committed is installed, and this checkout has changes that are not" >&2
fi
archive=$(mktemp)
trap 'rm -f "$archive"' EXIT
run git archive --format=tar.gz --output="$archive" HEAD
tpu scp "$archive" "$TPU_NAME:jaxretr.tar.gz" --worker=all
# uv brings the Python along: the images of most TPUs have 3.10.
# shellcheck disable=SC2016 # $HOME is the worker's
on_all_workers 'set -e
mkdir -p ~/jaxretr && tar -xzf ~/jaxretr.tar.gz -C ~/jaxretr && cd ~/jaxretr
export PATH=$HOME/.local/bin:$PATH
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/0.13.8/install.sh | sh
[ -x .venv/bin/python ] || uv venv --quiet --python 3.11 .venv
uv pip install --quiet --python .venv/bin/python -e ".[tpu,gcs]"'
