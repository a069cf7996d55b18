#!/usr/bin/env bash
# Trains on every worker of the TPU, and shows what they print.
#   usage: tpu/run.sh CONFIG --workdir gs://BUCKET/DIR [--section.key value ...] [--dry-run] [--help]
# The work directory must be one that all workers share; one that holds a checkpoint is resumed. A run that is still
# going saves itself and ends first, or is killed after STOP_SECONDS (180). Corpora, questions and models in buckets are
# mounted, wherever else gs:// occurs in the arguments and in the variables JAXRETR_*, which are handed on.
# Exit codes, of `jaxretr train`: 0 finished; 75 not finished, the same command resumes it; 1 failed; 2 wrong use; over 128
# killed by a signal; and 255 when not all workers could be asked.
set -euo pipefail
source "$(dirname "$0")/env.sh"
: "${STOP_SECONDS:=180}"
whole_numbers STOP_SECONDS
train_words /tmp/gs
[[ $WORKDIR == *://* ]] || echo "note: $WORKDIR must be a folder that all workers share and that outlives the TPU" >&2

attempt=$(date +%Y%m%d-%H%M%S)-$$-$RANDOM
# shellcheck disable=SC2016 # the worker's
folder='$HOME'/jaxretr/.runs/$attempt

# As a shell reads them.
words() { [[ $# == 0 ]] || printf ' %q' "$@"; }

# What runs on a worker. It belongs to no connection, so that it survives this one, and it leaves its exit code in a file.
job=$(
  cat <<'END'
set -euo pipefail
folder=$1
trap 'code=$?; echo "$code" >"$folder/code.new"; mv "$folder/code.new" "$folder/code"' EXIT
trap : TERM # meant for the program, whose exit code counts
END
  echo "stop_seconds=$STOP_SECONDS buckets=($(words ${BUCKETS[@]+"${BUCKETS[@]}"}))"
  cat <<'END'
if ((${#buckets[@]})) && ! command -v gcsfuse >/dev/null; then
  packages=https://packages.cloud.google.com/apt key=/usr/share/keyrings/cloud.google.asc
  curl -fsS $packages/doc/apt-key.gpg | sudo tee $key >/dev/null
  echo "deb [signed-by=$key] $packages gcsfuse-$(lsb_release -cs) main" | sudo tee /etc/apt/sources.list.d/gcsfuse.list
  sudo apt-get -qq update && sudo apt-get -qq install -y gcsfuse
fi
for bucket in ${buckets[@]+"${buckets[@]}"}; do
  mkdir -p "/tmp/gs/$bucket"
  mountpoint -q "/tmp/gs/$bucket" || gcsfuse --implicit-dirs -o ro "$bucket" "/tmp/gs/$bucket"
done
# Two runs cannot hold one TPU. SIGTERM, once, makes the earlier one save.
if pkill -TERM -x jaxretr; then
  echo "an earlier run was asked to save and end"
  for ((second = 0; second < stop_seconds; second++)); do
    pgrep -x jaxretr >/dev/null || break
    sleep 1
  done
  if pkill -KILL -x jaxretr; then
    echo "the earlier run was killed: it did not end within $stop_seconds seconds"
    sleep 1
  fi
fi
END
  echo "env$(words ${EXPORTS[@]+"${EXPORTS[@]}"}) JAXRETR_DISTRIBUTED=1 .venv/bin/jaxretr train$(words "${TRAIN[@]}")"
)

# gcloud repeats the command when its connection breaks. The second time it finds the folder, and only looks on.
watch=$(
  echo "folder=$folder"
  cat <<'END'
cd ~/jaxretr || exit 1
mkdir -p .runs
find .runs -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -rf {} +
lines=20
if mkdir "$folder" 2>/dev/null; then
  lines=+1
  cat >"$folder/job" <<'END_OF_JOB'
END
  printf '%s\nEND_OF_JOB\n' "$job"
  cat <<'END'
  touch "$folder/log"
  setsid bash "$folder/job" "$folder" >"$folder/log" 2>&1 </dev/null &
  echo $! >"$folder/pid"
fi
tail -n $lines -f --pid="$(cat "$folder/pid")" "$folder/log"
exit "$(cat "$folder/code")"
END
)

# The exit code of gcloud is that of one worker, of its own choice, or of ssh: each worker is asked for its own.
ask=$(
  echo "folder=$folder attempt=$attempt"
  cat <<'END'
code=$(cat "$folder/code" 2>/dev/null) || { kill -0 "$(cat "$folder/pid")" && code=running; } &&
  echo "jaxretr-exit $attempt $(hostname) $code"
END
)

# How much a worker's exit code says about what went wrong. 134: JAX aborts a process whose coordinator has died.
weight() {
  case $1 in
  0) echo 0 ;;
  75) echo 1 ;;
  134) echo 2 ;;
  255) echo 4 ;;
  1) echo 5 ;;
  2) echo 6 ;;
  *) echo 3 ;;
  esac
}

while true; do
  on_all_workers "$watch" || true
  if [[ $DRY_RUN != 0 ]]; then
    on_all_workers "$ask"
    exit
  fi
  outcome=0 running=0
  answers=$(on_all_workers "$ask") || outcome=255
  [[ $answers ]] || outcome=255
  while read -r mark id host code; do
    [[ $mark == jaxretr-exit && $id == "$attempt" ]] || continue
    if [[ $code == running ]]; then
      running=1
      continue
    fi
    ((code == 0)) || echo "$host ended with exit code $code" >&2
    if (($(weight "$code") > $(weight "$outcome"))); then outcome=$code; fi
  done <<<"$answers"
  # The connection was lost, and not the run.
  ((running && outcome != 255)) || break
  sleep "$TPU_POLL"
done
exit "$outcome"
