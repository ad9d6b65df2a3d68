#!/bin/sh
# Usage: sh launch/xpk.sh CLUSTER IMAGE BUCKET [--dry-run]     (docs/other_launchers.md)
set -eu
cluster=$1 image=$2 bucket=$3
shift 3
xpk workload create --cluster "$cluster" --workload t2t-base --docker-image "$image" \
  --tpu-type v5p-64 --num-slices 2 --env T2T_NUM_SLICES=2 \
  --max-restarts 50 --restart-on-exit-codes 1,75 --termination-grace-period-seconds 300 \
  --command "python -m t2t.launch.host train --config t5_1_1_xl --workdir gs://$bucket/xl --config.mesh.dcn_data=2" "$@"
