#!/usr/bin/env bash
# Creates the TPU pod of env.sh. One that is ready stays; one that was taken away is made anew.
#   TPU_NAME=art TPU_TYPE=v4-32 tpu/create.sh [--dry-run]
source "$(dirname "$0")/env.sh"

now=$(state)
case $now in
READY)
  echo "$TPU_NAME is ready"
  exit
  ;;
ABSENT) ;;
PREEMPTED | TERMINATED) tpu delete "$TPU_NAME" --quiet ;;
*)
  echo "$TPU_NAME is $now; wait, or remove it with tpu/delete.sh" >&2
  exit 1
  ;;
esac
spot=()
[[ $TPU_SPOT == 1 ]] && spot=(--spot)
tpu create "$TPU_NAME" --accelerator-type="$TPU_TYPE" --version="$TPU_VERSION" ${spot[@]+"${spot[@]}"}
