#!/usr/bin/env bash
# Asks for the TPU of env.sh as a queued resource, and waits until it is there.
#   usage: TPU_NAME=art TPU_TYPE=v5litepod-16 TPU_ZONE=us-west4-a tpu/create.sh [--dry-run] [--help]
# One that is there stays; one that was taken away or has failed is deleted and asked for again.
# Exit codes: 0 there; 75 not there after TPU_WAIT seconds (a request that was in the queue expires then); 1 failed.
set -euo pipefail
source "$(dirname "$0")/env.sh"
no_arguments

deadline="" requested=0 last=""

request() {
  local tier=()
  case $TPU_TIER in
  on-demand) ;;
  *) tier=("--$TPU_TIER") ;;
  esac
  # What is in the queue still when nobody waits any more would cost money unseen.
  queue create "$TPU_NAME" --node-id="$TPU_NAME" --accelerator-type="$TPU_TYPE" --runtime-version="$TPU_VERSION" \
    ${tier[@]+"${tier[@]}"} ${TPU_SERVICE_ACCOUNT:+"--service-account=$TPU_SERVICE_ACCOUNT"} \
    --valid-until-duration="$((deadline - SECONDS))s"
  requested=1
}

remove() {
  echo "$TPU_NAME is $1: deleted, to be asked for again" >&2
  queue delete "$TPU_NAME" --force --quiet
  requested=0
}

while true; do
  now=$(state)
  : "${deadline:=$((SECONDS + TPU_WAIT))}"
  if [[ $now == ACTIVE ]]; then
    echo "$TPU_NAME is ready"
    exit
  fi
  if ((SECONDS >= deadline)); then
    echo "$TPU_NAME is $now after $TPU_WAIT seconds (TPU_WAIT); try again later, in another zone, or a smaller TPU_TYPE" >&2
    exit 75
  fi
  case $now in
  ABSENT)
    if ((requested)); then
      echo "$TPU_NAME was deleted while this script waited for it" >&2
      exit 1
    fi
    request
    [[ $DRY_RUN == 0 ]] || exit 0
    continue
    ;;
  SUSPENDED | PREEMPTED | TERMINATED | STOPPED)
    remove "$now"
    continue
    ;;
  FAILED)
    if ((requested)); then
      echo "$TPU_NAME could not be made: $(field queued-resources state.failedData.error.message)" >&2
      exit 1
    fi
    remove "$now"
    continue
    ;;
  esac
  if [[ $now != "$last" ]]; then
    echo "$(date '+%F %T') $TPU_NAME is $now; $((deadline - SECONDS)) seconds are left to wait" >&2
    last=$now
  fi
  sleep "$TPU_POLL"
done
