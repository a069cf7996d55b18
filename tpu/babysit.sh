#!/usr/bin/env bash
# Creates the pod, installs, trains, and does so again each time the pod is taken away, until the run is finished.
#   tpu/babysit.sh configs/art_nq_t0_3b.py --workdir gs://BUCKET/runs/art [--dry-run]
# The arguments are run.sh's. Gives up after MAX_FAILURES (3) failures in a row on a pod that is still there: these are
# the run's own. PAUSE (60) seconds pass between attempts.
source "$(dirname "$0")/env.sh"

here=$(dirname "$0")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0
while true; do
  if [[ $(state) != READY ]]; then
    # No capacity, or still being made or removed: patience.
    until "$here/create.sh"; do run sleep "${PAUSE:-60}"; done
    "$here/setup.sh" || { run sleep "${PAUSE:-60}" && continue; }
  fi
  if "$here/run.sh" ${ARGS[@]+"${ARGS[@]}"} 2>&1 | tee "$log"; then
    # A run that a signal stopped ends well too, but says so.
    grep -q 'interrupted: saved step' "$log" || break
  elif [[ $(state) == READY ]]; then
    failures=$((failures + 1))
    if ((failures >= ${MAX_FAILURES:-3})); then
      echo "the run failed $failures times in a row on a pod that is ready; see above" >&2
      exit 1
    fi
    run sleep "${PAUSE:-60}"
    continue
  fi
  failures=0
  run sleep "${PAUSE:-60}"
done
