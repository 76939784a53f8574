# Leaves a test that needs several ranks where there can be none: . "$SOURCE_DIR/tests/dist/need_mpi.sh"
if ! command -v mpirun >/dev/null; then
    echo "skipped: there is no mpirun here (Debian package openmpi-bin)"
    exit 77
fi
if [ ! -f "$(dirname "$ESPER")/libesper-mpi.so" ] && [ ! -f "$(dirname "$ESPER")/lib/libesper-mpi.so" ]; then
    echo "skipped: this build has no libesper-mpi.so (Debian package libopenmpi-dev)"
    exit 77
fi
