#!/usr/bin/env bash
# Trains on every worker of the pod, and shows what they print. Run it in tmux: it lasts as long as the training.
#   tpu/run.sh configs/art_nq_t0_3b.py --workdir gs://BUCKET/runs/art [--train.steps 1000 ...] [--dry-run]
# A run that is still going saves itself and ends first; a work directory that holds a checkpoint is resumed.
# The work directory must be one that all workers share. Buckets are mounted with gcsfuse, wherever gs:// occurs in the
# arguments and in the variables JAXRETR_*, which are handed on to the workers.
source "$(dirname "$0")/env.sh"

if [[ ${#ARGS[@]} == 0 || " ${ARGS[*]} " != *" --workdir"[\ =]* ]]; then
  echo "usage: tpu/run.sh CONFIG --workdir gs://BUCKET/DIR [--section.key value ...] [--dry-run]" >&2
  exit 2
fi

mounts=/tmp/gs
remote='set -e
cd ~/jaxretr'
buckets=$({ printf '%s\n' "${ARGS[@]}" && env | grep '^JAXRETR_' || true; } | sed -n 's|.*gs://\([^/]*\).*|\1|p' | sort -u)
if [[ -n $buckets ]]; then
  # shellcheck disable=SC2016 # the release is the worker's
  remote+='
if ! command -v gcsfuse >/dev/null; then
  packages=https://packages.cloud.google.com/apt key=/usr/share/keyrings/cloud.google.asc
  curl -fsS $packages/doc/apt-key.gpg | sudo tee $key >/dev/null
  echo "deb [signed-by=$key] $packages gcsfuse-$(lsb_release -cs) main" | sudo tee /etc/apt/sources.list.d/gcsfuse.list
  sudo apt-get -qq update && sudo apt-get -qq install -y gcsfuse
fi'
fi
for bucket in $buckets; do
  # gcsfuse renames a folder file by file, up to this many; Orbax renames each checkpoint once it is whole.
  remote+="
mkdir -p $mounts/$bucket
mountpoint -q $mounts/$bucket || gcsfuse --implicit-dirs --rename-dir-limit=100000 $bucket $mounts/$bucket"
done
# Two runs cannot hold one TPU. SIGTERM, once, makes the earlier one save.
remote+='
pkill -TERM -x jaxretr || true
while pgrep -x jaxretr >/dev/null; do sleep 1; done
'
for name in $(compgen -e | grep '^JAXRETR_' || true); do
  remote+="$(printf '%s=%q ' "$name" "${!name//gs:\/\//$mounts/}")"
done
remote+="JAXRETR_DISTRIBUTED=1 .venv/bin/jaxretr train$(printf ' %q' "${ARGS[@]//gs:\/\//$mounts/}")"
on_all_workers "$remote"
