#!/usr/bin/env bash
# Settings and the functions of the other scripts, which source this file. Run by itself it prints the settings in force.
#   usage: TPU_NAME=art TPU_TYPE=v5litepod-16 TPU_ZONE=us-west4-a tpu/env.sh [--dry-run] [--help]
# Every setting comes from the environment; README.md has the list.
set -euo pipefail

# Of the script that was started: its first comment.
usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }

wrong_use() {
  echo "$(basename "$0"): $1" >&2
  usage >&2
  exit 2
}

: "${DRY_RUN:=0}"
ARGS=()
for word in "$@"; do
  case $word in
  --dry-run) DRY_RUN=1 ;;
  --help | -h) usage && exit ;;
  *) ARGS+=("$word") ;;
  esac
done

no_arguments() { [[ ${#ARGS[@]} == 0 ]] || wrong_use "${ARGS[0]}: takes no such argument"; }

whole_numbers() {
  local name
  for name in "$@"; do
    [[ ${!name} =~ ^[0-9]{1,9}$ ]] || wrong_use "$name=${!name}: give a whole number"
  done
}

# Runs a command, or prints it so that it can be pasted into a shell.
run() {
  if [[ $DRY_RUN == 0 ]]; then "$@"; else quoted "$@"; fi
}

quoted() {
  local word quote="'\\''" line=""
  for word in "$@"; do
    [[ $word =~ ^[-+=:/.,@%_A-Za-z0-9]+$ ]] || word="'${word//\'/$quote}'"
    line+="$word "
  done
  echo "${line% }"
}

# ---- the words of `jaxretr train` ------------------------------------------------------------------------------------

# Sets WORKDIR, TRAIN (the words for the workers), EXPORTS (NAME=value of what is set in JAXRETR_*) and BUCKETS (names).
# The program itself reads and writes a work directory in a bucket. Corpora, questions and models in buckets are read
# through mounts: there gs:// becomes the folder $1.
train_words() {
  local mounts=$1 word name verbatim=0 config=${ARGS[0]:-}
  [[ $config && $config != -* ]] || wrong_use "give a config first"
  [[ -f $(dirname "$0")/../$config ]] || wrong_use "$config: no such config in this checkout; give its path from there"
  WORKDIR="" TRAIN=() EXPORTS=() BUCKETS=()
  for word in "${ARGS[@]}"; do
    case $verbatim$word in
    0--workdir | 0--data.token-cache | 0--data.token_cache)
      TRAIN+=("$word")
      verbatim=$word
      continue
      ;;
    0--workdir=*)
      WORKDIR=${word#*=}
      TRAIN+=("$word")
      ;;
    0--data.token-cache=* | 0--data.token_cache=*) TRAIN+=("$word") ;;
    0*)
      note_buckets "$word"
      TRAIN+=("${word//gs:\/\//$mounts/}")
      ;;
    *)
      [[ $verbatim != --workdir ]] || WORKDIR=$word
      TRAIN+=("$word")
      ;;
    esac
    verbatim=0
  done
  [[ $WORKDIR ]] || wrong_use "--workdir is missing"
  for name in $(compgen -e); do
    case $name in
    JAXRETR_DISTRIBUTED) ;;
    JAXRETR_*)
      note_buckets "${!name}"
      EXPORTS+=("$name=${!name//gs:\/\//$mounts/}")
      ;;
    esac
  done
}

note_buckets() {
  local rest=$1 bucket known
  while [[ $rest =~ gs://([a-z0-9][-a-z0-9._]*)(.*) ]]; do
    bucket=${BASH_REMATCH[1]} rest=${BASH_REMATCH[2]}
    for known in ${BUCKETS[@]+"${BUCKETS[@]}"}; do
      [[ $known != "$bucket" ]] || continue 2
    done
    BUCKETS+=("$bucket")
  done
}

# ---- Cloud TPU -------------------------------------------------------------------------------------------------------

: "${TPU_NAME:=jaxretr}"
: "${TPU_TYPE:=v5litepod-16}"
: "${TPU_PROJECT:=}" # empty: gcloud's own default
: "${TPU_TIER:=spot}"
: "${TPU_SERVICE_ACCOUNT:=}" # empty: the project's default one
: "${TPU_WAIT:=86400}"
: "${TPU_POLL:=30}"
case $TPU_TYPE in
v5lite*) : "${TPU_VERSION:=v2-alpha-tpuv5-lite}" "${TPU_ZONE:=us-west4-a}" ;;
v5p*) : "${TPU_VERSION:=v2-alpha-tpuv5}" "${TPU_ZONE:=us-east5-a}" ;;
v6e*) : "${TPU_VERSION:=v2-alpha-tpuv6e}" "${TPU_ZONE:=us-east1-d}" ;;
*) : "${TPU_VERSION:=tpu-ubuntu2204-base}" "${TPU_ZONE:=us-central2-b}" ;;
esac
[[ $TPU_NAME =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] || wrong_use "TPU_NAME=$TPU_NAME: give small letters, digits and hyphens"
[[ $TPU_TYPE =~ ^v[0-9a-z]+-[0-9]+$ ]] || wrong_use "TPU_TYPE=$TPU_TYPE: give a type such as v5litepod-16, v6e-32, v4-32"
case $TPU_TIER in
spot | on-demand | guaranteed | reserved) ;;
*) wrong_use "TPU_TIER=$TPU_TIER: give spot, on-demand, guaranteed or reserved" ;;
esac
whole_numbers TPU_WAIT TPU_POLL
export DRY_RUN TPU_NAME TPU_TYPE TPU_ZONE TPU_PROJECT TPU_TIER TPU_VERSION TPU_SERVICE_ACCOUNT TPU_WAIT TPU_POLL

where=("--zone=$TPU_ZONE" ${TPU_PROJECT:+"--project=$TPU_PROJECT"})

queue() { run gcloud compute tpus queued-resources "$@" "${where[@]}"; }

tpu() { run gcloud compute tpus tpu-vm "$@" "${where[@]}"; }

on_all_workers() { tpu ssh "$TPU_NAME" --worker=all --command="$1"; }

# A field of the queued resource or of the TPU (queued-resources, tpu-vm); ABSENT when there is none.
field() {
  local answer errors code=0
  errors=$(mktemp)
  answer=$(gcloud compute tpus "$1" describe "$TPU_NAME" --format="value($2)" "${where[@]}" 2>"$errors") || code=$?
  if ((code == 0)); then
    echo "$answer"
  elif [[ $(<"$errors") == *NOT_FOUND* ]]; then
    echo ABSENT && code=0
  else
    cat "$errors" >&2
  fi
  rm -f "$errors"
  return "$code"
}

# ACTIVE when the TPU can be used. Else what the queued resource says, or, where it still says ACTIVE, the TPU itself:
# one that is taken away says so first. ABSENT when there is none, which is what a dry run takes for granted.
state() {
  local queued node
  if [[ $DRY_RUN != 0 ]]; then
    echo ABSENT
    return
  fi
  queued=$(field queued-resources state.state) || return
  if [[ $queued == ACTIVE ]]; then
    node=$(field tpu-vm state) || return
    case $node in
    READY) ;;
    ABSENT) queued=PREEMPTED ;;
    *) queued=$node ;;
    esac
  fi
  echo "$queued"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  no_arguments
  for word in NAME TYPE ZONE PROJECT TIER VERSION SERVICE_ACCOUNT WAIT POLL; do
    word=TPU_$word
    echo "$word=$(quoted "${!word}")"
  done
fi
