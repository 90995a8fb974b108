#!/bin/sh
# Slurm epilog: after a job, does one of its processes still hold GPU memory?
#
#   slurm.conf:  Epilog=/etc/slurm/epilog.d/gpuagent.sh
#
# What ends with a status other than 0 has Slurm drain the node (https://slurm.schedmd.com/prolog_epilog.html): nobody
# gets a GPU that is not empty, and the log says who holds it. Nothing is killed here. Where no agent answers, it has no
# opinion: a monitor that is down must not take nodes out of service.
set -u

patience_seconds=${GPUAGENT_EPILOG_SECONDS:-30} # the driver takes a moment to give memory back after the last process

[ -n "${SLURM_JOB_ID:-}" ] || exit 0

held() { gpuagent ps --job "$SLURM_JOB_ID" --all 2>/dev/null; }

waited=0
while left=$(held) && [ -n "$left" ]; do
    if [ "$waited" -ge "$patience_seconds" ]; then
        logger -t gpuagent -p daemon.err "job $SLURM_JOB_ID has ended and still holds GPU memory: $left"
        printf 'gpuagent: job %s has ended and still holds GPU memory\n%s\n' "$SLURM_JOB_ID" "$left" >&2
        exit 1
    fi
    sleep 1
    waited=$((waited + 1))
done
exit 0
