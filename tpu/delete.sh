#!/usr/bin/env bash
# Deletes the TPU of env.sh, with all that is on its disks, or takes the request for it out of the queue.
#   usage: TPU_NAME=art TPU_ZONE=us-west4-a tpu/delete.sh [--dry-run] [--help]
# A TPU costs money until this was done, whether it trains or not. What is in a bucket stays.
set -euo pipefail
source "$(dirname "$0")/env.sh"
no_arguments

queued=ANY node=ABSENT
if [[ $DRY_RUN == 0 ]]; then
  queued=$(field queued-resources state.state)
  # A TPU that was made without a queue.
  [[ $queued != ABSENT ]] || node=$(field tpu-vm state)
fi
case $queued-$node in
ABSENT-ABSENT) echo "there is no $TPU_NAME in $TPU_ZONE" ;;
ABSENT-DELETING | DELETING-*) echo "$TPU_NAME is being deleted" ;;
ABSENT-*) tpu delete "$TPU_NAME" --quiet ;;
*) queue delete "$TPU_NAME" --force --quiet ;;
esac
