#!/usr/bin/env bash
# Deletes the TPU pod of env.sh, with all that is on its disks.
#   TPU_NAME=art tpu/delete.sh [--dry-run]
source "$(dirname "$0")/env.sh"

now=$(state)
if [[ $now == ABSENT && $DRY_RUN == 0 ]]; then
  echo "there is no $TPU_NAME in $TPU_ZONE"
  exit
fi
tpu delete "$TPU_NAME" --quiet
