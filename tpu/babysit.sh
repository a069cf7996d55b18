#!/usr/bin/env bash
# Asks for the TPU, installs, trains, and does so again each time the TPU is taken away, until the run is finished.
#   usage: tpu/babysit.sh CONFIG --workdir gs://BUCKET/DIR [--section.key value ...] [--dry-run] [--help]
# The arguments are run.sh's. Run it in tmux: it lasts as long as the training. It stops
#   at once     when the run is finished (exit code 0), after wrong use (2), and when no TPU came within TPU_WAIT (75);
#   with 1      after MAX_FAILURES (3) failures in a row on a TPU that is still there. A start that ends with "not
#               finished" is one of them when it made no new checkpoint (or, where these cannot be listed, took less
#               than MIN_SECONDS, 600).
# PAUSE (60) seconds pass between attempts. TPU_DELETE=1 deletes the TPU when the script stops.
set -euo pipefail
source "$(dirname "$0")/env.sh"
: "${MAX_FAILURES:=3}" "${MIN_SECONDS:=600}" "${PAUSE:=60}" "${TPU_DELETE:=0}"
whole_numbers MAX_FAILURES MIN_SECONDS PAUSE TPU_DELETE
train_words /tmp/gs

here=$(dirname "$0")
failures=0

trap 'echo "stopped watching; the run continues, and $TPU_NAME costs money until it is deleted: tpu/delete.sh" >&2; exit 130' INT

stop() {
  if [[ $TPU_DELETE != 0 ]]; then
    "$here/delete.sh" || true
  else
    echo "$TPU_NAME costs money until it is deleted: tpu/delete.sh" >&2
  fi
  exit "$1"
}

failed() {
  failures=$((failures + 1))
  echo "$1 ($failures in a row, of MAX_FAILURES=$MAX_FAILURES)" >&2
  if ((failures >= MAX_FAILURES)); then stop 1; fi
}

# Whether the TPU has been taken away or is about to be; it takes a moment to show.
taken_away() {
  local now
  now=$(state) || return
  if [[ $now == ACTIVE ]]; then
    sleep "$PAUSE"
    now=$(state) || return
  fi
  [[ $now != ACTIVE ]] || return 1
  echo "$TPU_NAME is $now; it is asked for again" >&2
}

# The checkpoints, to see whether there are others later; fails where they cannot be listed.
checkpoints() {
  [[ $WORKDIR == gs://* ]] && gcloud storage ls "${WORKDIR%/}/checkpoints/" 2>/dev/null
}

while true; do
  code=0
  "$here/create.sh" || code=$?
  case $code in
  0) ;;
  2) exit 2 ;;
  75) stop 75 ;;
  *)
    failed "$TPU_NAME could not be made"
    sleep "$PAUSE"
    continue
    ;;
  esac

  if ! "$here/setup.sh"; then
    taken_away || failed "the installation on $TPU_NAME failed"
    continue
  fi

  if [[ $DRY_RUN != 0 ]]; then
    run gcloud storage ls "${WORKDIR%/}/checkpoints/"
    "$here/run.sh" "${ARGS[@]}"
    exit
  fi
  listed=1 began=$SECONDS
  before=$(checkpoints) || listed=0
  code=0
  "$here/run.sh" "${ARGS[@]}" || code=$?
  case $code in
  0)
    echo "the run is finished: $WORKDIR"
    stop 0
    ;;
  2) stop 2 ;;
  esac
  advanced=0
  # An empty folder cannot be listed: the first checkpoint is an advance, too.
  if after=$(checkpoints); then
    if [[ $after != "$before" ]]; then advanced=1; fi
    listed=1
  fi
  if ((listed == 0 && code == 75 && SECONDS - began >= MIN_SECONDS)); then advanced=1; fi
  if ((advanced)); then failures=0; fi
  if taken_away; then
    failures=0
  elif ((code != 75 || advanced == 0)); then
    failed "the run ended with exit code $code on a TPU that is still there"
  fi
done
