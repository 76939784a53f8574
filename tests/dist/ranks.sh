#!/usr/bin/env bash
# Runs a program as a job of several ranks on this machine, with what Open MPI needs for that: leave to run as root, more
# ranks than cores, no binding to cores, and no shell to other machines. Copies inside the kernel are off, since
# containers forbid them; so is the launcher's shared map of the machine, which it now and then lays over its own stack.
#   usage: ranks.sh N PROGRAM [ARGUMENT...]
# Environment: RANKS_SECONDS, after which the job is ended (60). Exit status 77: there is no MPI here.
set -uo pipefail

n=$1
shift
if ! command -v mpirun >/dev/null; then
    echo "skipped: there is no mpirun here (Debian package openmpi-bin)"
    exit 77
fi
if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
export OMPI_MCA_plm=isolated OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rtc_hwloc_vmhole=none
# Launchers of one user share a folder that the last of them removes: another that begins just then finds it, and ends.
OMPI_MCA_orte_tmpdir_base=$(mktemp -d) || exit 1
export OMPI_MCA_orte_tmpdir_base
trap 'rm -rf "$OMPI_MCA_orte_tmpdir_base"' EXIT
timeout -k 5 "${RANKS_SECONDS:-60}" mpirun --oversubscribe --bind-to none -n "$n" "$@"
