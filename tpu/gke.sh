#!/usr/bin/env bash
# Trains on Google Kubernetes Engine: fills in gke.yaml (TPU) or gke-gpu.yaml (GPU), and hands it to kubectl.
#   usage: GKE_IMAGE=IMAGE tpu/gke.sh create CONFIG --workdir gs://BUCKET/DIR [--section.key value ...]
#          tpu/gke.sh status | logs [HOST] | delete                               each with [--dry-run] [--help]
# A TPU: GKE_ACCELERATOR=tpu-v5-lite-podslice GKE_TOPOLOGY=4x4 (GKE_CHIPS_PER_HOST=4). GPUs: GKE_ACCELERATOR=gpu
# GKE_GPU_TYPE=nvidia-h100-80gb GKE_HOSTS=2 (GKE_GPUS_PER_HOST=8). README.md has the other settings.
# create: recreates a failed set, which resumes from its checkpoints; leaves a running or finished one alone.
set -euo pipefail
source "$(dirname "$0")/env.sh"

: "${GKE_NAME:=jaxretr}" "${GKE_NAMESPACE:=default}"
: "${GKE_ACCELERATOR:=tpu-v5-lite-podslice}" "${GKE_TOPOLOGY:=4x4}" "${GKE_CHIPS_PER_HOST:=}"
: "${GKE_GPU_TYPE:=nvidia-h100-80gb}" "${GKE_HOSTS:=1}" "${GKE_GPUS_PER_HOST:=8}"
: "${GKE_IMAGE:=}" "${GKE_SERVICE_ACCOUNT:=default}" "${GKE_SPOT:=0}"
: "${GKE_MAX_RESTARTS:=100}" "${GKE_GRACE_SECONDS:=180}"
whole_numbers GKE_SPOT GKE_MAX_RESTARTS GKE_GRACE_SECONDS GKE_HOSTS GKE_GPUS_PER_HOST
for word in GKE_NAME GKE_NAMESPACE GKE_SERVICE_ACCOUNT GKE_ACCELERATOR GKE_GPU_TYPE; do
  # 40: Kubernetes' 63, less what JobSet appends to name the pods.
  [[ ${!word} =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] ||
    wrong_use "$word=${!word}: give at most 40 small letters, digits and hyphens"
done

cluster() { run kubectl --namespace="$GKE_NAMESPACE" "$@"; }

# As YAML and JSON read a string, and with Kubernetes' own $(...) switched off.
json() {
  local text=$1
  [[ $text != *[[:cntrl:]]* ]] || wrong_use "$(printf %q "$text"): give words without line breaks and tabs"
  # shellcheck disable=SC2016 # Kubernetes' way to write $(
  text=${text//\\/\\\\} text=${text//\"/\\\"} text=${text//'$('/'$$('}
  printf '"%s"' "$text"
}

# Prints a template with __NAME__ replaced by $FILL_NAME, and comments "# __NAME__" by the lines of $FILL_NAME.
fill() {
  local line tail value each
  while IFS= read -r line; do
    if [[ $line =~ ^(\ *)#\ __([A-Z_]+)__$ ]]; then
      value=FILL_${BASH_REMATCH[2]} tail=${BASH_REMATCH[1]}
      [[ -z ${!value} ]] || while IFS= read -r each; do printf '%s%s\n' "$tail" "$each"; done <<<"${!value}"
      continue
    fi
    tail=""
    # From the right: what was filled in is not looked at again.
    while [[ $line =~ ^(.*[^A-Z_])__([A-Z_]+)__(.*)$ ]]; do
      value=FILL_${BASH_REMATCH[2]} line=${BASH_REMATCH[1]} tail=${!value}${BASH_REMATCH[3]}$tail
    done
    printf '%s\n' "$line$tail"
  done <"$1"
}

# Sets what the templates name.
# shellcheck disable=SC2034 # fill reads them by their names
settings() {
  local chips=1 size word bucket number=0
  : "${JAXRETR_JOIN_SECONDS:=1800}" # pods of one set do not start together
  export JAXRETR_JOIN_SECONDS
  train_words /gs
  [[ $WORKDIR == *://* ]] || wrong_use "--workdir $WORKDIR: must be in a bucket (gs://...): pods have no disk that stays"
  [[ $GKE_IMAGE =~ ^[a-z0-9][-a-zA-Z0-9._/:@]*$ ]] || wrong_use "GKE_IMAGE=$GKE_IMAGE: name an image; tpu/Dockerfile makes one"
  FILL_NAME=$GKE_NAME FILL_IMAGE=$GKE_IMAGE FILL_SERVICE_ACCOUNT=$GKE_SERVICE_ACCOUNT
  FILL_MAX_RESTARTS=$GKE_MAX_RESTARTS FILL_GRACE_SECONDS=$GKE_GRACE_SECONDS FILL_SPOT=""
  [[ $GKE_SPOT == 0 ]] || FILL_SPOT='cloud.google.com/gke-spot: "true"'

  if [[ $GKE_ACCELERATOR == gpu ]]; then
    template=gke-gpu.yaml FILL_ACCELERATOR=$GKE_GPU_TYPE FILL_GPUS_PER_HOST=$GKE_GPUS_PER_HOST FILL_HOSTS=$GKE_HOSTS
    ((GKE_HOSTS && GKE_GPUS_PER_HOST)) || wrong_use "GKE_HOSTS and GKE_GPUS_PER_HOST: give at least 1"
  else
    template=gke.yaml FILL_ACCELERATOR=$GKE_ACCELERATOR FILL_TOPOLOGY=$GKE_TOPOLOGY
    [[ $GKE_TOPOLOGY =~ ^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}$ ]] ||
      wrong_use "GKE_TOPOLOGY=$GKE_TOPOLOGY: give a topology such as 4x4 or 2x2x4"
    for size in ${GKE_TOPOLOGY//x/ }; do chips=$((chips * size)); done
    : "${GKE_CHIPS_PER_HOST:=$((chips < 4 ? chips : 4))}"
    whole_numbers GKE_CHIPS_PER_HOST
    ((GKE_CHIPS_PER_HOST && chips % GKE_CHIPS_PER_HOST == 0)) ||
      wrong_use "GKE_CHIPS_PER_HOST=$GKE_CHIPS_PER_HOST: does not divide the $chips chips of $GKE_TOPOLOGY"
    FILL_CHIPS_PER_HOST=$GKE_CHIPS_PER_HOST FILL_HOSTS=$((chips / GKE_CHIPS_PER_HOST))
  fi

  FILL_ARGS="" FILL_ENV="" FILL_MOUNTS="" FILL_VOLUMES="" FILL_MOUNTED=false
  for word in "${TRAIN[@]}"; do FILL_ARGS+="${FILL_ARGS:+, }$(json "$word")"; done
  FILL_ARGS="[$FILL_ARGS]"
  for word in "${EXPORTS[@]}"; do
    FILL_ENV+="${FILL_ENV:+$'\n'}- {name: ${word%%=*}, value: $(json "${word#*=}")}"
  done
  for bucket in ${BUCKETS[@]+"${BUCKETS[@]}"}; do
    FILL_MOUNTED=true
    FILL_MOUNTS+="${FILL_MOUNTS:+$'\n'}- {name: bucket-$number, mountPath: /gs/$bucket, readOnly: true}"
    FILL_VOLUMES+="${FILL_VOLUMES:+$'\n'}- name: bucket-$number
  csi:
    driver: gcsfuse.csi.storage.gke.io
    readOnly: true
    volumeAttributes: {bucketName: $(json "$bucket"), mountOptions: implicit-dirs}"
    number=$((number + 1))
  done
}

create() {
  local filled found
  settings
  filled=$(fill "$(dirname "$0")/$template")
  if [[ $DRY_RUN != 0 ]]; then
    printf '%s <<%s\n%s\n%s\n' "$(cluster apply --filename=-)" "'END_OF_SET'" "$filled" END_OF_SET
    return
  fi
  found=$(cluster get jobset "$GKE_NAME" --ignore-not-found --output='jsonpath={.metadata.name} {.status.terminalState}')
  case ${found#* } in
  Completed)
    echo "$GKE_NAME is finished already; to start it again: tpu/gke.sh delete, then create"
    return
    ;;
  Failed) cluster delete jobset "$GKE_NAME" --wait=true ;;
  esac
  cluster apply --filename=- <<<"$filled"
}

verb=${ARGS[0]:-}
ARGS=(${ARGS[@]+"${ARGS[@]:1}"})
pods=jobset.sigs.k8s.io/jobset-name=$GKE_NAME
case $verb in
create) create ;;
status)
  no_arguments
  cluster get jobset "$GKE_NAME" --output=wide
  cluster get pods --selector="$pods" --output=wide
  ;;
logs)
  host=${ARGS[0]:-0}
  [[ ${#ARGS[@]} -le 1 && $host =~ ^[0-9]+$ ]] || wrong_use "logs: give the number of a host"
  cluster logs --selector="$pods,batch.kubernetes.io/job-completion-index=$host" --container=train --tail=1000 --follow
  ;;
delete)
  no_arguments
  cluster delete jobset "$GKE_NAME" --ignore-not-found
  ;;
*) wrong_use "${verb:-nothing}: say create, status, logs or delete" ;;
esac
