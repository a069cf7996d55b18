# Settings and the few functions of the other scripts, which source this file. Each setting can come from outside:
#   TPU_NAME=art TPU_TYPE=v5litepod-16 TPU_ZONE=us-west4-a tpu/create.sh
# shellcheck shell=bash
set -euo pipefail

: "${TPU_NAME:=jaxretr}"
: "${TPU_TYPE:=v4-32}"
: "${TPU_ZONE:=us-central2-b}"
: "${TPU_PROJECT:=}" # empty: gcloud's own default
: "${TPU_SPOT:=1}"   # 1: cheap, and taken away at any time, which babysit.sh is for
case $TPU_TYPE in
v5lite*) : "${TPU_VERSION:=v2-alpha-tpuv5-lite}" ;;
v5p*) : "${TPU_VERSION:=v2-alpha-tpuv5}" ;;
v6e*) : "${TPU_VERSION:=v2-alpha-tpuv6e}" ;;
*) : "${TPU_VERSION:=tpu-ubuntu2204-base}" ;;
esac

# Every script takes --dry-run, which prints the commands in place of running them, and --help.
: "${DRY_RUN:=0}"
ARGS=()
for word in "$@"; do
  case $word in
  --dry-run) DRY_RUN=1 ;;
  --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
  *) ARGS+=("$word") ;;
  esac
done
export DRY_RUN TPU_NAME TPU_TYPE TPU_ZONE TPU_PROJECT TPU_SPOT TPU_VERSION

run() {
  if [[ $DRY_RUN == 0 ]]; then
    "$@"
    return
  fi
  local word quote="'\\''" line=""
  for word in "$@"; do
    [[ $word =~ ^[-+=:/.,@%_A-Za-z0-9]+$ ]] || word="'${word//\'/$quote}'"
    line+="$word "
  done
  echo "${line% }"
}

where=("--zone=$TPU_ZONE" ${TPU_PROJECT:+"--project=$TPU_PROJECT"})

tpu() { run gcloud compute tpus tpu-vm "$@" "${where[@]}"; }

on_all_workers() { tpu ssh "$TPU_NAME" --worker=all --command="$1"; }

# READY, CREATING, PREEMPTED, ...; ABSENT when there is no such pod, which is what a dry run assumes.
state() {
  local answer
  if [[ $DRY_RUN == 1 ]]; then
    echo ABSENT
  elif answer=$(gcloud compute tpus tpu-vm describe "$TPU_NAME" --format='value(state)' "${where[@]}" 2>&1); then
    echo "$answer"
  elif [[ $answer == *NOT_FOUND* || $answer == *"not found"* ]]; then
    echo ABSENT
  else
    echo "$answer" >&2
    return 1
  fi
}
